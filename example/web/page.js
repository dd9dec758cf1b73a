// Calls the service of ../streaming/demo.proto from a web page, without a proxy,
// by each protocol that the page's clients know. docs/browser.md says how to
// run it.
import {create, fromBinary, toBinary} from '@bufbuild/protobuf';
import {Code, ConnectError, createClient} from '@connectrpc/connect';
import {createConnectTransport, createGrpcWebTransport} from
    '@connectrpc/connect-web';
import grpcWeb from 'grpc-web';
import {Demo, NumberSchema, TextSchema} from './demo_pb.js';

const server = new URLSearchParams(location.search).get('server') ??
    'http://127.0.0.1:5573';
document.getElementById('server').textContent = server;

let failures = 0;

function show(client, call, result, good) {
  if (!good) ++failures;
  const row = document.getElementById('calls').insertRow();
  for (const text of [client, call, result]) {
    row.insertCell().textContent = text;
  }
  row.className = good ? 'good' : 'bad';
}

async function attempt(client, call, expected, run) {
  let result;
  try {
    result = await run();
  } catch (error) {
    result = `failed: ${error}`;
  }
  show(client, call, result, result === expected);
}

// @connectrpc/connect-web: Connect and gRPC-Web.
async function callByConnect(name, transport) {
  const client = createClient(Demo, transport);
  await attempt(name, 'Echo', 'hello', async () =>
    (await client.echo({text: 'hello'})).text);
  await attempt(name, 'Count', '1 2 3', async () => {
    const numbers = [];
    for await (const number of client.count({value: 3n})) {
      numbers.push(number.value);
    }
    return numbers.join(' ');
  });
  await attempt(name, 'a failure', 'Unknown: There is nothing to count.',
    async () => {
      try {
        for await (const number of client.count({value: -1n})) {
          return `a number: ${number.value}`;
        }
        return 'no failure';
      } catch (error) {
        const failure = ConnectError.from(error);
        return `${Code[failure.code]}: ${failure.rawMessage}`;
      }
    });
}

// grpc-web, with messages of the same generated code.
function method(name, type, input, output) {
  return new grpcWeb.MethodDescriptor(
    `/example.streaming.Demo/${name}`, type, Object, Object,
    (request) => toBinary(input, request),
    (bytes) => fromBinary(output, bytes));
}

async function callByGrpcWeb(name, format) {
  const client = new grpcWeb.GrpcWebClientBase({format});
  const echo = method('Echo', grpcWeb.MethodType.UNARY, TextSchema, TextSchema);
  const count = method(
    'Count', grpcWeb.MethodType.SERVER_STREAMING, NumberSchema, NumberSchema);
  await attempt(name, 'Echo', 'hello', async () =>
    (await client.unaryCall(`${server}/example.streaming.Demo/Echo`,
      create(TextSchema, {text: 'hello'}), {}, echo)).text);
  // This client reads streams in the text format alone.
  if (format !== 'text') return;
  const read = (value) => new Promise((resolve) => {
    const numbers = [];
    const stream = client.serverStreaming(
      `${server}/example.streaming.Demo/Count`,
      create(NumberSchema, {value}), {}, count);
    stream.on('data', (number) => numbers.push(number.value));
    stream.on('error', (error) => resolve(`${error.code}: ${error.message}`));
    stream.on('end', () => resolve(numbers.join(' ')));
  });
  await attempt(name, 'Count', '1 2 3', () => read(3n));
  await attempt(name, 'a failure', '2: There is nothing to count.',
    () => read(-1n));
}

async function callAll() {
  await callByConnect('Connect, JSON', createConnectTransport(
    {baseUrl: server}));
  await callByConnect('Connect, binary', createConnectTransport(
    {baseUrl: server, useBinaryFormat: true}));
  await callByConnect('gRPC-Web of connect-web', createGrpcWebTransport(
    {baseUrl: server}));
  await callByGrpcWeb('grpc-web, text', 'text');
  await callByGrpcWeb('grpc-web, binary', 'binary');
  document.getElementById('summary').textContent =
      failures === 0 ? 'All calls went well.' : `${failures} calls failed.`;
}

callAll();
