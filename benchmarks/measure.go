package main

import (
	"context"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/internal/redisserver"
)

// settle is how long a measurement waits after the work, for acks that are still on their way.
const settle = 50 * time.Millisecond

// usage is what some work took.
type usage struct {
	wall      time.Duration
	redisCPU  time.Duration
	clientCPU time.Duration
	sent      int64 // commands that clients sent
	ran       int64 // commands that the server ran, those inside scripts included
	allocs    uint64
	bytes     uint64 // allocated, not held
}

// measure does some work and says what it took, on the server and in this process.
func (e *env) measure(work func() error) (usage, error) {
	runtime.GC()
	before, err := e.snapshot()
	if err != nil {
		return usage{}, err
	}
	start := time.Now()
	if err := work(); err != nil {
		return usage{}, err
	}
	wall := time.Since(start)
	time.Sleep(settle)
	after, err := e.snapshot()
	if err != nil {
		return usage{}, err
	}
	return usage{
		wall:      wall,
		redisCPU:  after.redisCPU - before.redisCPU,
		clientCPU: after.clientCPU - before.clientCPU,
		sent:      after.sent - before.sent,
		ran:       after.ran - before.ran,
		allocs:    after.allocs - before.allocs,
		bytes:     after.bytes - before.bytes,
	}, nil
}

// snapshot is all that was used so far.
func (e *env) snapshot() (u usage, err error) {
	if u.redisCPU, err = e.server.CPU(); err != nil {
		return u, err
	}
	commands, err := e.server.Commands()
	if err != nil {
		return u, err
	}
	u.sent = e.sent.Load()
	for name, calls := range commands {
		if redisserver.OfAdmin(name) {
			continue
		}
		u.ran += calls.N
		if redisserver.OfConnection(name) {
			u.sent += calls.N
		}
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	u.allocs, u.bytes = mem.Mallocs, mem.TotalAlloc
	var used syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	u.clientCPU = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	return u, err
}

// perMessage are the figures of work that was done on n messages. rate is the column of its speed.
func (u usage) perMessage(rate column, n int) figures {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(n) }
	return figures{
		rate:           float64(n) / u.wall.Seconds(),
		redisCPU:       micros(u.redisCPU),
		clientCPU:      micros(u.clientCPU),
		commandsSent:   float64(u.sent) / float64(n),
		commandsRun:    float64(u.ran) / float64(n),
		allocations:    float64(u.allocs) / float64(n),
		allocatedBytes: float64(u.bytes) / float64(n),
	}
}

// newClient is a client whose commands are counted. Every system gets clients like this, with room
// in the pool for peers that keep a connection for each consumer.
func (e *env) newClient() *redis.Client {
	return e.newClientWithPool(100)
}

func (e *env) newClientWithPool(size int) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: e.server.Addr, PoolSize: size})
	client.AddHook(counter{&e.sent})
	return client
}

// counter counts the commands that a client sends. What concerns connections does not all pass by
// here, so the server counts that.
type counter struct{ sent *atomic.Int64 }

func (c counter) count(cmd redis.Cmder) {
	if !redisserver.OfConnection(cmd.Name()) {
		c.sent.Add(1)
	}
}

func (counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}
