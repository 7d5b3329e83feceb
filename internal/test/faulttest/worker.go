package faulttest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Role is the role of a worker.
type Role string

const (
	Publisher Role = "publisher"
	Consumer  Role = "consumer"
)

// Worker is the configuration of a worker process, a publisher or a consumer. It is passed as JSON,
// so times are in ms. World.Start fills in Place, Direct, Dir, Topics and Groups.
type Worker struct {
	Role Role   `json:"role"`
	Name string `json:"name"` // unique in the World

	Place  Place  `json:"place"`  // for the project's client
	Direct Place  `json:"direct"` // for reading the server's clock
	Dir    string `json:"dir"`    // directory of its journal
	Prefix string `json:"prefix"`

	Topics []string `json:"topics"`
	Broken Broken   `json:"broken,omitempty"`

	PoolSize      int `json:"pool_size,omitempty"`       // pool size of its client; 0: go-redis's default
	ReadTimeoutMS int `json:"read_timeout_ms,omitempty"` // likewise

	// Partitions is not 0 if each of the Topics is one of package partition. InFlight is then of
	// each partition.
	Partitions int `json:"partitions,omitempty"`
	// Follows has a consumer use the number of partitions in Redis, Partitions of them at most.
	Follows bool `json:"follows,omitempty"`

	// For a publisher. Message i goes to topic i modulo their number; the lists are used in the
	// same way.
	Messages       int      `json:"messages,omitempty"`         // number to publish; 0: until it is stopped
	Batch          int      `json:"batch,omitempty"`            // messages per call; default 1
	Callers        int      `json:"callers,omitempty"`          // goroutines; default 1
	PauseMS        int      `json:"pause_ms,omitempty"`         // pause of a goroutine after a call
	DelaysMS       []int    `json:"delays_ms,omitempty"`        // default: none
	Do             []string `json:"do,omitempty"`               // see Do; default: "ack"
	Payload        int      `json:"payload,omitempty"`          // bytes; default 32
	CancelEvery    int      `json:"cancel_every,omitempty"`     // every n-th message is due in an hour and is cancelled; 0: none
	WaitReplicas   int      `json:"wait_replicas,omitempty"`    // PublisherConfig.WaitReplicas
	Keys           int      `json:"keys,omitempty"`             // number of partition keys, see keyOf; only with Partitions
	KeySet         string   `json:"key_set,omitempty"`          // start of the names of the keys
	Rounds         int      `json:"rounds,omitempty"`           // messages of a key that come soon after one another
	First          int      `json:"first,omitempty"`            // number of the first message
	CancelCallerMS int      `json:"cancel_caller_ms,omitempty"` // maximum time until the context of a call ends; every tenth call has no end

	// For a consumer.
	Group          string `json:"group,omitempty"`
	InFlight       int    `json:"in_flight,omitempty"` // default 1
	LeaseMS        int    `json:"lease_ms,omitempty"`  // default 1000
	MaxExtensionMS int    `json:"max_extension_ms,omitempty"`
	MaxDeliveries  int    `json:"max_deliveries,omitempty"` // default: no limit
	WorkMS         int    `json:"work_ms,omitempty"`        // maximum time that a handler takes
	Stuck          bool   `json:"stuck,omitempty"`          // no handler ever ends
	SingleActive   bool   `json:"single_active,omitempty"`
	Limit          int    `json:"limit,omitempty"`      // SubscriberConfig.Limit
	Burst          int    `json:"burst,omitempty"`      // SubscriberConfig.Burst
	AtOnce         int    `json:"at_once,omitempty"`    // SubscriberConfig.AtOnce
	BackoffMS      int    `json:"backoff_ms,omitempty"` // backoff of messages nacked without a delay
	CloseTimeoutMS int    `json:"close_timeout_ms,omitempty"`
}

// doKey is the metadata key that says what the handler does with the message.
const doKey = "do"

// Nack is for Worker.Do: the handler nacks the first deliveries, as many as times, with a delay. A
// negative delay means none.
func Nack(times int, delay time.Duration) string {
	return fmt.Sprintf("nack %d %d", times, delay.Milliseconds())
}

// Work is for Worker.Do: the handler takes d, and acks.
func Work(d time.Duration) string { return fmt.Sprintf("work %d", d.Milliseconds()) }

// Hold is for Worker.Do: the handler waits for World.Release with this name, and acks. It does not
// heed the message's context.
func Hold(name string) string { return "hold " + name }

// Other values for Worker.Do.
const (
	Ack  = "ack"
	Die  = "die"  // the process kills itself each time it gets the message
	Hang = "hang" // the handler waits for the end of its message's context, and nacks
)

// workerVariable is the environment variable with a process's Worker.
const workerVariable = "FAULTTEST_WORKER"

// process is a running worker.
type process struct {
	Worker
	journal *Journal
	client  redis.UniversalClient // the project's
	direct  redis.UniversalClient
	tokens  *tokens
	stopped chan struct{} // closed when it must end cleanly
	ending  context.Context
	keys    keys
}

// runWorker runs the Worker in the environment variable, and returns the exit status.
func runWorker(text string) int {
	redis.SetOTelRecorder(tries{})
	p := &process{tokens: &tokens{leases: map[*byte]string{}}, stopped: make(chan struct{})}
	if err := json.Unmarshal([]byte(text), &p.Worker); err != nil {
		return p.fail(err)
	}
	var err error
	if p.journal, err = OpenJournal(p.Dir, p.Name); err != nil {
		return p.fail(err)
	}
	p.direct = p.Direct.Client(impatient)
	t, err := newTamper(context.Background(), p.direct, p.Broken)
	if err != nil {
		return p.fail(err)
	}
	p.client = p.Place.Client(func(o *redis.UniversalOptions) {
		o.PoolSize = p.PoolSize
		o.ReadTimeout = time.Duration(p.ReadTimeoutMS) * time.Millisecond
	})
	w := &wire{journal: p.journal, clock: p.clock, tamper: t, tokens: p.tokens}
	p.client.AddHook(w)
	if cluster, ok := p.client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(nodeWire{w}) })
	}
	ending, end := context.WithCancel(context.Background())
	p.ending = ending
	go p.obey(end)
	switch p.Role {
	case Publisher:
		err = p.publish()
	case Consumer:
		err = p.consume()
	default:
		err = fmt.Errorf("nobody knows what a %q does", p.Role)
	}
	if err != nil {
		return p.fail(err)
	}
	return 0
}

func (p *process) fail(err error) int {
	fmt.Fprintf(os.Stderr, "faulttest: worker %q: %v\n", p.Name, err)
	return 1
}

// obey reads the test's commands. When the test has ended, the process exits at once.
func (p *process) obey(end func()) {
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if commands.Text() == "stop" {
			close(p.stopped)
			end()
		}
	}
	kill()
}

// kill kills this process with SIGKILL.
func kill() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}

// tell sends a line to the test.
func tell(what string) { fmt.Println(what) }

// clock returns the server's time in µs, or 0 if it does not answer.
func (p *process) clock() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/4)
	defer cancel()
	now, err := p.direct.Time(ctx).Result()
	if err != nil {
		return 0
	}
	return now.UnixMicro()
}

// dials ignores the client's goroutine that tries to connect, until a second after the server is
// back.
var dials = goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")

// close closes the Publisher or Subscriber. It records how long that took, whether goroutines are
// left, and whether the client is still open.
func (p *process) close(others goleak.Option, close func() error) {
	began := time.Now()
	err := close()
	e := Event{Kind: Closed, Took: int64(time.Since(began)), Outcome: ClientOpen}
	if err != nil {
		e.Err = "close: " + err.Error()
	}
	p.breakClosing()
	if ping := p.client.Ping(context.Background()).Err(); errors.Is(ping, redis.ErrClosed) {
		e.Outcome = "closed"
	}
	if p.Place.MasterName != "" || p.Place.Cluster { // these clients have goroutines for their nodes
		_ = p.client.Close()
		_ = p.direct.Close()
	}
	if leak := goleak.Find(others, dials); leak != nil {
		e.Err += " goroutines: " + leak.Error()
	}
	p.journal.Write(e)
	_ = p.client.Close()
}

// breakClosing does the deliberate faults of Close.
func (p *process) breakClosing() {
	switch p.Broken {
	case ClosesClient:
		_ = p.client.Close()
	case LeavesGoroutine:
		go func() { select {} }()
	}
}

// logger writes errors to the journal.
type logger struct {
	watermill.NopLogger
	journal *Journal
}

func (l logger) Error(text string, err error, fields watermill.LogFields) {
	l.journal.Write(Event{Kind: Logged, Err: fmt.Sprintf("%s: %v %v", text, err, fields)})
}

func (l logger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (p *process) logger() watermill.LoggerAdapter { return logger{journal: p.journal} }

// consume handles messages until the process is stopped.
func (p *process) consume() error {
	others := goleak.IgnoreCurrent()
	subscriber, err := p.subscriber(redisdelay.SubscriberConfig{
		Client:        p.client,
		KeyPrefix:     p.Prefix,
		Unmarshaler:   p.tokens,
		ConsumerGroup: p.Group,
		MaxInFlight:   max(p.InFlight, 1),
		// In the end nothing is to be left, and a window would keep all for some seconds.
		TakeoverWindow: -1,
		LeaseDuration:  ms(cmp.Or(p.LeaseMS, 1000)),
		MaxExtension:   ms(p.MaxExtensionMS),
		MaxDeliveries:  cmp.Or(p.MaxDeliveries, -1),
		Backoff:        func(int) time.Duration { return ms(p.BackoffMS) },
		CloseTimeout:   ms(cmp.Or(p.CloseTimeoutMS, 5000)),
		SingleActive:   p.SingleActive,
		Limit:          redisdelay.Limit(p.Limit),
		Burst:          p.Burst,
		AtOnce:         p.AtOnce,
	})
	if err != nil {
		return err
	}
	var handlers, topics sync.WaitGroup
	for _, topic := range p.Topics {
		messages, err := subscriber.Subscribe(context.Background(), topic)
		for ; servers.Unreachable(err); messages, err = subscriber.Subscribe(context.Background(), topic) {
			time.Sleep(20 * time.Millisecond) // like a program
		}
		if err != nil {
			return err
		}
		topics.Go(func() {
			for msg := range messages {
				handlers.Go(func() { p.handle(msg) })
				if p.Broken == HandlesTwice {
					handlers.Go(func() { p.handle(msg) })
				}
			}
		})
	}
	tell("ready")
	<-p.stopped
	p.close(others, func() error {
		err := subscriber.Close()
		topics.Wait()
		handlers.Wait()
		return err
	})
	return nil
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }
