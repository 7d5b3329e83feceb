// BullMQ, on one connection for the queue and two for the worker, as it makes them. Completed jobs
// are removed, several jobs are added by addBulk, and the worker's concurrency is 300, since its
// documentation says 100 to 300 for jobs that wait for I/O. Called as driver/driver.go says.
import fs from 'node:fs';
import { parseArgs } from 'node:util';
import { Queue, Worker } from 'bullmq';
import IORedis from 'ioredis';

const command = process.argv[2];
const { values: flags } = parseArgs({
  args: process.argv.slice(3),
  options: Object.fromEntries(
    ['addr', 'lease', 'producers', 'min', 'max', 'messages', 'batch', 'arrivals'].map((name) => [name, { type: 'string' }])),
});

// millis reads a duration as Go prints it, such as 1m30s or 200ms.
function millis(text) {
  const units = { h: 3_600_000, m: 60_000, s: 1000, ms: 1 };
  return [...text.matchAll(/([\d.]+)(ms|h|m|s)/g)].reduce((sum, [, n, unit]) => sum + n * units[unit], 0);
}

const [host, port] = flags.addr.split(':');
const newConnection = () => new IORedis({ host, port: Number(port), maxRetriesPerRequest: null });
const name = 'peers';

// mixed is the function of that name in driver/driver.go.
function mixed(number) {
  const u64 = (n) => BigInt.asUintN(64, n);
  let z = u64(BigInt(number + 1) * 0x9e3779b97f4a7c15n);
  z = u64((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = u64((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z >> 16n;
}

// job makes a message. Its delay depends on its number only. BullMQ stores data as JSON, so this
// text without its quotes becomes the same 100 bytes as elsewhere.
function job(number, min, max) {
  const delay = min + Number(mixed(number) % BigInt(max - min + 1));
  const timestamp = Date.now();
  const data = `${String(number).padStart(16, '0')}${String(timestamp + delay).padStart(16, '0')}${'0'.repeat(66)}`;
  return { name, data, opts: { delay, timestamp, removeOnComplete: true } };
}

async function produce() {
  const queue = new Queue(name, { connection: newConnection() });
  await queue.waitUntilReady();
  const [min, max] = [millis(flags.min), millis(flags.max)];
  const [messages, batch] = [Number(flags.messages), Number(flags.batch)];
  let next = 0;
  const start = performance.now();
  await Promise.all(Array.from({ length: Number(flags.producers) }, async () => {
    for (let first; (first = next) < messages;) {
      next += batch;
      const jobs = Array.from({ length: Math.min(batch, messages - first) }, (_, i) => job(first + i, min, max));
      if (batch === 1) await queue.add(name, jobs[0].data, jobs[0].opts);
      else await queue.addBulk(jobs);
    }
  }));
  console.log(JSON.stringify({ seconds: (performance.now() - start) / 1000 }));
  await queue.close();
  process.exit(0);
}

async function consume() {
  const file = fs.openSync(flags.arrivals, 'a');
  const lease = millis(flags.lease);
  let hangs = false;
  process.on('SIGUSR1', () => { hangs = true; });
  const worker = new Worker(name, async ({ data }) => {
    if (hangs) await new Promise(() => {});
    if (data.length !== 98) throw new Error(`a payload of ${data.length} characters arrived, want 98`);
    const now = Math.floor((performance.timeOrigin + performance.now()) * 1000);
    fs.writeSync(file, `${data.slice(0, 32)}${String(now).padStart(16, '0')}\n`);
  }, { connection: newConnection(), concurrency: 300, lockDuration: lease, stalledInterval: lease });
  worker.on('failed', (_, err) => { console.error(err); process.exit(1); });
  worker.on('error', (err) => console.error(err));
  await worker.waitUntilReady();
  console.log('{"ready": true}');
  process.on('SIGTERM', async () => {
    await worker.close();
    process.exit(0);
  });
}

if (command === 'produce') await produce();
else if (command === 'consume') await consume();
