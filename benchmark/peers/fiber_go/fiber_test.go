// Package fiber_go repeats //benchmark/fiber with goroutines, under the same
// names. Run by tools/fiber_table:
//
//	GOMAXPROCS=1 go test -bench=Yield
//
// The table sets GOMAXPROCS to 1 where the others use one worker. There
// the metric "cpu-ns/op" counts, the CPU time of the process, as for the
// others; "ns/op" where goroutines run on two threads.
package fiber_go

import (
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const batch = 100

func cpuTime() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// Times `body`, which does the measured work b.N times.
func measure(b *testing.B, body func()) {
	b.ResetTimer()
	before := cpuTime()
	body()
	used := cpuTime() - before
	b.StopTimer()
	b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
}

func BenchmarkSpawnRun(b *testing.B) {
	measure(b, func() {
		ran := 0
		for spawned := 0; spawned < b.N; {
			for i := 0; i < batch; i++ {
				go func() { ran++ }()
			}
			for spawned += batch; ran < spawned; {
				runtime.Gosched()
			}
		}
	})
}

func BenchmarkSpawnJoin(b *testing.B) {
	ran := 0
	measure(b, func() {
		for i := 0; i < b.N; i++ {
			var end sync.WaitGroup
			end.Add(1)
			go func() {
				ran++
				end.Done()
			}()
			end.Wait()
		}
	})
}

func BenchmarkSpawnJoin100(b *testing.B) {
	ran := 0
	measure(b, func() {
		for i := 0; i < b.N; i += batch {
			var end sync.WaitGroup
			end.Add(batch)
			for k := 0; k < batch; k++ {
				go func() {
					ran++
					end.Done()
				}()
			}
			end.Wait()
		}
	})
}

func yield(b *testing.B) {
	measure(b, func() {
		for i := 0; i < b.N; i++ {
			runtime.Gosched()
		}
	})
}

func BenchmarkYield(b *testing.B) { yield(b) }

// Its way to suspend a goroutine and resume it through the queue.
func BenchmarkSuspendResume(b *testing.B) { yield(b) }

func BenchmarkYieldBetweenTwo(b *testing.B) {
	stop := false
	ended := make(chan bool)
	go func() {
		for !stop {
			runtime.Gosched()
		}
		ended <- true
	}()
	measure(b, func() {
		for i := 0; i < b.N; i += 2 {
			runtime.Gosched()
		}
	})
	stop = true
	<-ended
}

// It has no semaphore to be used by programs: a channel takes its place.
func pingPong(b *testing.B, capacity int, locked bool) {
	ping := make(chan int, capacity)
	pong := make(chan int, capacity)
	go func() {
		if locked {
			runtime.LockOSThread()
		}
		for value := range ping {
			pong <- value
		}
		close(pong)
	}()
	if locked {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	measure(b, func() {
		for i := 0; i < b.N; i++ {
			ping <- i
			<-pong
		}
	})
	close(ping)
	<-pong
}

func BenchmarkSemaphorePingPong(b *testing.B) { pingPong(b, 1, false) }

func BenchmarkSemaphorePingPongTwoWorkers(b *testing.B) {
	pingPong(b, 1, false)
}

// Each locked to a thread, so that it has to be woken.
func BenchmarkSemaphorePingPongThread(b *testing.B) { pingPong(b, 1, true) }

func BenchmarkChannelRoundTrip(b *testing.B) { pingPong(b, 0, false) }

func BenchmarkChannelSendReceive(b *testing.B) {
	channel := make(chan int, 64)
	sum := make(chan int)
	go func() {
		received := 0
		for value := range channel {
			received += value
		}
		sum <- received
	}()
	measure(b, func() {
		for i := 0; i < b.N; i++ {
			channel <- 1
		}
	})
	close(channel)
	if <-sum != b.N {
		b.Fatal("some are lost")
	}
}

func BenchmarkConditionHop(b *testing.B) {
	var mutex sync.Mutex
	changed := sync.NewCond(&mutex)
	turn := 0
	ended := make(chan bool)
	go func() {
		mutex.Lock()
		for turn != 2 {
			for turn == 0 {
				changed.Wait()
			}
			if turn == 1 {
				turn = 0
			}
			changed.Signal()
		}
		mutex.Unlock()
		ended <- true
	}()
	measure(b, func() {
		for i := 0; i < b.N; i += 2 {
			mutex.Lock()
			turn = 1
			changed.Signal()
			for turn != 0 {
				changed.Wait()
			}
			mutex.Unlock()
		}
	})
	mutex.Lock()
	turn = 2
	changed.Signal()
	mutex.Unlock()
	<-ended
}

func BenchmarkMutexUncontended(b *testing.B) {
	var mutex sync.Mutex
	measure(b, func() {
		for i := 0; i < b.N; i++ {
			mutex.Lock()
			mutex.Unlock()
		}
	})
}

func contend(b *testing.B, goroutines int) {
	var mutex sync.Mutex
	var end sync.WaitGroup
	count := 0
	end.Add(goroutines)
	measure(b, func() {
		for i := 0; i < goroutines; i++ {
			go func() {
				for k := 0; k < b.N/goroutines; k++ {
					mutex.Lock()
					count++
					mutex.Unlock()
				}
				end.Done()
			}()
		}
		end.Wait()
	})
}

func BenchmarkMutexContended(b *testing.B) {
	b.Run("2", func(b *testing.B) { contend(b, 2) })
	b.Run("4", func(b *testing.B) { contend(b, 4) })
}

func BenchmarkTimerArmCancel(b *testing.B) {
	timer := time.AfterFunc(time.Hour, func() { panic("not due") })
	timer.Stop()
	measure(b, func() {
		for i := 0; i < b.N; i++ {
			timer.Reset(time.Hour)
			timer.Stop()
		}
	})
}

func BenchmarkTimerFire(b *testing.B) {
	const shots = 1000
	var left atomic.Int32
	done := make(chan bool)
	timers := make([]*time.Timer, shots)
	for i := range timers {
		timers[i] = time.AfterFunc(time.Hour, func() {
			if left.Add(-1) == 0 {
				done <- true
			}
		})
	}
	measure(b, func() {
		for i := 0; i < b.N; i += shots {
			left.Store(shots)
			for _, timer := range timers {
				timer.Reset(0)
			}
			<-done
		}
	})
}

// A goroutine wakes another one, for which a thread that sleeps has to get up:
// the waker keeps its own busy until then.
func BenchmarkWakeSleeping(b *testing.B) {
	var woken atomic.Int64
	wake := make(chan bool)
	go func() {
		for range wake {
			woken.Store(time.Now().UnixNano())
		}
	}()
	delays := make([]int64, b.N)
	for i := range delays {
		time.Sleep(300 * time.Microsecond)
		woken.Store(0)
		started := time.Now().UnixNano()
		wake <- true
		for woken.Load() == 0 {
		}
		delays[i] = woken.Load() - started
	}
	close(wake)
	sort.Slice(delays, func(i, k int) bool { return delays[i] < delays[k] })
	b.ReportMetric(float64(delays[len(delays)/2]), "p50_ns")
}

func memoryInUse() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	kilobytes := 0
	for _, line := range strings.Split(string(status), "\n") {
		words := strings.Fields(line)
		if len(words) > 1 && (words[0] == "VmRSS:" || words[0] == "VmPTE:") {
			value, err := strconv.Atoi(words[1])
			if err != nil {
				panic(err)
			}
			kilobytes += value
		}
	}
	return kilobytes * 1024
}

func BenchmarkIdleFiberMemory(b *testing.B) {
	const goroutines = 100_000
	before := memoryInUse()
	end := make(chan bool)
	var started, ended sync.WaitGroup
	started.Add(goroutines)
	ended.Add(goroutines)
	for i := 0; i < goroutines; i++ {
		go func() {
			started.Done()
			<-end
			ended.Done()
		}()
	}
	started.Wait()
	used := memoryInUse() - before
	close(end)
	ended.Wait()
	b.ReportMetric(float64(used)/goroutines, "bytes")
}
