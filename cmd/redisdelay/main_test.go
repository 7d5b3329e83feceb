package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	if addr := os.Getenv(asWorker); addr != "" {
		work(addr)
		return
	}
	// watermill-nats and watermill-amqp leave these goroutines behind when a consumer closes.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats%2ego.(*Conn).drainConnection"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp.(*ConnectionWrapper).handleConnectionClose"),
		// The metrics of Kafka's client count for ever.
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
