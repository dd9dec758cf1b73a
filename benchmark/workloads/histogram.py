"""Latencies: counted in buckets, merged, thinned for storing, and read.

    latencies = Histogram.from_buckets(report['histogram_ns'])
    latencies.add(other)
    latencies.figures()['p999_us']

Times are in microseconds. A stored histogram has buckets of 1% width around
their middle, so a figure read from it is at most 1% off; the mean and the
greatest value are kept exactly.
"""

import bisect
import math

FIGURES = {'p50_us': 0.5, 'p90_us': 0.9, 'p99_us': 0.99, 'p999_us': 0.999,
           'p9999_us': 0.9999}
FIGURES = {'avg_us': None, **FIGURES, 'max_us': None}

# Ratio of neighbouring thin buckets' bounds.
STEP = 1.02
_LOG_STEP = math.log(STEP)


class Histogram:
    """Counts by bucket; a bucket is known by its middle, in microseconds."""

    def __init__(self):
        self.counts = {}
        self.count = 0
        self.total_us = 0.0
        self.max_us = 0.0

    @classmethod
    def from_buckets(cls, buckets, mean_us=None, max_us=None, unit_ns=1):
        """From [lowest, highest, count], ordered, in `unit_ns` nanoseconds."""
        made = cls()
        for lowest, highest, count in buckets:
            made._count((lowest + highest) / 2 * unit_ns / 1e3, count)
            made.max_us = highest * unit_ns / 1e3
        if max_us is not None:
            made.max_us = max_us
        if mean_us is not None:
            made.total_us = mean_us * made.count
        return made

    def _count(self, middle_us, count):
        self.counts[middle_us] = self.counts.get(middle_us, 0) + count
        self.count += count
        self.total_us += middle_us * count

    def add(self, other):
        for middle, count in other.counts.items():
            self.counts[middle] = self.counts.get(middle, 0) + count
        self.count += other.count
        self.total_us += other.total_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile(self, share):
        """The latency that `share` (0 to 1) of all are not above."""
        rank = max(1, math.ceil(share * self.count - 1e-9))
        seen = 0
        for middle in sorted(self.counts):
            seen += self.counts[middle]
            if seen >= rank:
                return min(middle, self.max_us)
        return self.max_us

    def figures(self):
        values = {name: self.percentile(share)
                  for name, share in FIGURES.items() if share is not None}
        values['avg_us'] = self.total_us / self.count
        values['max_us'] = self.max_us
        return {name: round(values[name], 3) for name in FIGURES}

    def cdf(self, points=120):
        """[(latency, share not above it)], thinned to about so many.

        Evenly in the number of nines, so that the tail is as detailed as the
        bulk.
        """
        latencies = sorted(self.counts)
        shares = []
        seen = 0
        for latency in latencies:
            seen += self.counts[latency]
            shares.append(seen / self.count)
        nines = math.log10(max(self.count, 10))
        wanted = [1 - 10 ** (-nines * step / points)
                  for step in range(points)] + [1.0]
        kept = sorted({bisect.bisect_left(shares, share - 1e-12)
                       for share in wanted})
        return [(latencies[i], shares[i]) for i in kept if i < len(latencies)]

    def thin(self):
        """The stored form: {"mean_us", "max_us", "first", "counts"}.

        `counts` belong to buckets of 2% width; bucket i + `first` is around
        1.02 ** (i + first + 0.5) microseconds.
        """
        thin = {}
        for middle, count in self.counts.items():
            bucket = math.floor(math.log(max(middle, 1e-3)) / _LOG_STEP)
            thin[bucket] = thin.get(bucket, 0) + count
        first = min(thin, default=0)
        counts = [thin.get(bucket, 0)
                  for bucket in range(first, max(thin, default=-1) + 1)]
        mean = self.total_us / self.count if self.count else 0.0
        return {'mean_us': round(mean, 3), 'max_us': round(self.max_us, 3),
                'first': first, 'counts': run_length(counts)}

    @classmethod
    def from_thin(cls, stored):
        made = cls()
        bucket = stored['first']
        for item in stored['counts']:
            if item < 0:
                bucket -= item
                continue
            made._count(STEP ** (bucket + 0.5), item)
            bucket += 1
        made.total_us = stored['mean_us'] * made.count
        made.max_us = stored['max_us']
        return made


def run_length(counts):
    """[5, 0, 0, 0, 7] becomes [5, -3, 7]: runs of zeros by their length."""
    packed = []
    for count in counts:
        if count:
            packed.append(count)
        elif packed and packed[-1] < 0:
            packed[-1] -= 1
        else:
            packed.append(-1)
    return packed


def merged(histograms):
    """The sum of some, or None if any of them is missing."""
    total = Histogram()
    for one in histograms:
        if one is None:
            return None
        total.add(one)
    return total
