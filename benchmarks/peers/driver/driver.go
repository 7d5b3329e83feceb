// Package driver is what the programs of all systems written in Go have in common. A program is
// called as
//
//	PROGRAM setup|produce|consume [flags]
//
// setup creates what the server needs, such as a schema, and ends. produce publishes the messages
// and prints one line of JSON, {"seconds": 1.23}. consume prints {"ready": true} as soon as it
// gets messages, and runs until SIGTERM. It appends one record for each message to the file of
// -arrivals before it acknowledges the message, so a kill -9 loses no record. From SIGUSR1 on, its
// handlers hang, so that messages are in hand when it is killed.
package driver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Options are the flags that systems need.
type Options struct {
	Addr      string        // of the server, host:port
	Lease     time.Duration // after which the message of a dead worker comes back, where it can be set
	Producers int           // goroutines that publish
	MaxDelay  time.Duration
}

// PostgresURL is the address of a PostgreSQL server for pgxpool, with the size of the pool.
func PostgresURL(o Options, connections int) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&pool_max_conns=%d", o.Addr, connections)
}

// Message is one to be published. Payload is a JSON string of 100 bytes, so that systems which only
// take JSON need not encode it.
type Message struct {
	Payload []byte
	Delay   time.Duration // whole milliseconds; 0: none
	Due     time.Time     // whole milliseconds
}

// System is one of those that are compared.
type System struct {
	// Setup creates what the other two need. nil: they need nothing.
	Setup func(ctx context.Context, o Options) error

	// Produce returns a function that publishes messages in one call, if the system has a call for
	// several, and returns when the server has confirmed them. n numbers the producer that calls.
	Produce func(ctx context.Context, o Options) (publish func(ctx context.Context, n int, messages []Message) error, err error)

	// Consume begins to call handle with each payload, and acknowledges the message when handle
	// returns. handle is safe for concurrent use. stop ends that.
	Consume func(ctx context.Context, o Options, handle func(payload []byte)) (stop func() error, err error)
}

// Main is the main function of a system's program.
func Main(s System) {
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(s System) error {
	if len(os.Args) < 2 {
		return errors.New("usage: PROGRAM setup|produce|consume [flags]")
	}
	var o Options
	var l load
	var arrivals string
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&o.Addr, "addr", "", "the server's `host:port`")
	flags.DurationVar(&o.Lease, "lease", 30*time.Second, "after which the message of a dead worker comes back")
	flags.IntVar(&o.Producers, "producers", 32, "goroutines that publish")
	flags.DurationVar(&o.MaxDelay, "max", 10*time.Second, "longest delay; 0: none")
	flags.DurationVar(&l.minDelay, "min", time.Second, "shortest delay")
	flags.IntVar(&l.messages, "messages", 0, "messages to publish")
	flags.IntVar(&l.batch, "batch", 1, "messages in one call")
	flags.StringVar(&arrivals, "arrivals", "", "`file` to which records of what arrives are appended")
	_ = flags.Parse(os.Args[2:])

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	switch os.Args[1] {
	case "setup":
		if s.Setup == nil {
			return nil
		}
		return s.Setup(ctx, o)
	case "produce":
		publish, err := s.Produce(ctx, o)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := l.publish(ctx, o, publish); err != nil {
			return err
		}
		_, err = fmt.Printf("{\"seconds\": %f}\n", time.Since(start).Seconds())
		return err
	case "consume":
		file, err := os.OpenFile(arrivals, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		// The context of the signal is not passed on: stop ends the work in good order.
		hung := make(chan os.Signal, 1)
		signal.Notify(hung, syscall.SIGUSR1)
		var hangs atomic.Bool
		go func() {
			<-hung
			hangs.Store(true)
		}()
		stop, err := s.Consume(context.Background(), o, func(payload []byte) {
			if hangs.Load() {
				select {}
			}
			record(file, payload)
		})
		if err != nil {
			return err
		}
		fmt.Println(`{"ready": true}`)
		<-ctx.Done()
		return stop()
	}
	return fmt.Errorf("%q is none of setup, produce, consume", os.Args[1])
}

// load says what is published.
type load struct {
	messages, batch int
	minDelay        time.Duration
}

func (l load) publish(ctx context.Context, o Options, publish func(context.Context, int, []Message) error) error {
	var next atomic.Int64
	failed := make([]error, o.Producers)
	var producers sync.WaitGroup
	for p := range o.Producers {
		producers.Go(func() {
			for failed[p] == nil {
				first := int(next.Add(int64(l.batch))) - l.batch
				if first >= l.messages {
					return
				}
				messages := make([]Message, min(l.batch, l.messages-first))
				for i := range messages {
					messages[i] = l.message(first+i, o.MaxDelay)
				}
				failed[p] = publish(ctx, p, messages)
			}
		})
	}
	producers.Wait()
	return errors.Join(failed...)
}

// message makes a message. Its delay looks random, and depends on its number only, so that all
// systems have the same.
func (l load) message(number int, maxDelay time.Duration) Message {
	m := Message{Due: time.UnixMilli(time.Now().UnixMilli())}
	if maxDelay > 0 {
		span := (maxDelay - l.minDelay).Milliseconds() + 1
		m.Delay = l.minDelay + time.Duration(mixed(number)%span)*time.Millisecond
		m.Due = m.Due.Add(m.Delay)
	}
	m.Payload = fmt.Appendf(nil, `"%016d%016d%066d"`, number, m.Due.UnixMilli(), 0)
	return m
}

// mixed returns a number that looks random, by the steps of SplitMix64.
func mixed(number int) int64 {
	z := uint64(number+1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64(z >> 16)
}

// record appends a record to the file: number, due time in ms, time of arrival in µs.
func record(file *os.File, payload []byte) {
	if len(payload) != 100 {
		fmt.Fprintf(os.Stderr, "a payload of %d bytes arrived, want 100: %q\n", len(payload), payload)
		os.Exit(1)
	}
	line := fmt.Appendf(make([]byte, 0, 49), "%s%016d\n", payload[1:33], time.Now().UnixMicro())
	if _, err := file.Write(line); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
