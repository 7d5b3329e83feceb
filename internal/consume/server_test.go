package consume

import (
	"cmp"
	"context"
	"errors"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

var errNoServer = errors.New("no server")

// server is a client's hook that answers scripts by a fakeRedis. It has no network, so that it can
// be used in a bubble.
type server struct {
	mu sync.Mutex
	*fakeRedis
	slow    time.Duration // how long each round trip takes
	failing error         // of every call; nil: they are run
	nacks   []nacked
	counted map[string]int // what claims told, by its field of stats
	called  func()         // is called before each round trip
}

// nacked is what a nack told.
type nacked struct{ id, delay, reason string }

func (f *server) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errNoServer }
}

func (f *server) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return f.process(ctx, []redis.Cmder{cmd}) }
}

func (f *server) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return f.process
}

func (f *server) process(ctx context.Context, cmds []redis.Cmder) error {
	f.called()
	f.mu.Lock()
	wait, err := time.NewTimer(f.slow), f.failing
	f.mu.Unlock()
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step(time.Now())
	if err != nil {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
	for _, cmd := range cmds {
		switch cmd := cmd.(type) {
		case *redis.Cmd:
			cmd.SetVal(f.script(cmd.Args()))
		case *redis.BoolCmd: // whether the topic is in the registry
			cmd.SetVal(true)
		}
	}
	return nil
}

// script runs a call as the script would.
func (f *server) script(args []any) any {
	text := make([]string, len(args))
	for i, a := range args {
		if p, ok := a.(*string); ok {
			a = *p
		}
		text[i], _ = a.(string)
	}
	name, head := queue.ScriptName(text[1]), 3+args[2].(int)
	args, text = args[head:], text[head:]
	switch name {
	case "ack":
		settled := 0
		parts := args[4].(int)
		ids := text[5+2*parts:]
		for p := range parts {
			n := args[6+2*p].(int)
			for _, id := range ids[:n] {
				settled += btoi(f.ack(&queue.Leased{ID: id, Token: text[5+2*p]}))
			}
			ids = ids[n:]
		}
		return int64(settled)
	case "release":
		for i := len(text) - 2; i >= 2; i -= 2 {
			f.release(&queue.Leased{ID: text[i], Token: text[i+1]})
		}
	case "nack":
		for t := text[3:]; len(t) > 0; t = t[7:] {
			f.nacks = append(f.nacks, nacked{t[0], t[2], t[5]})
			failure := queue.Failure{Leased: &queue.Leased{ID: t[0], Token: t[1]}, Dead: t[2] == "asked" || t[2] == "late" || t[2] == "unmarshal"}
			if delay, postponed := strings.CutPrefix(t[2], "+"); postponed {
				failure.Postponed, t[2] = true, delay
			}
			if t[2] != "0" {
				failure.Retry = queue.In(time.Hour)
			}
			f.nack(&failure, time.Now())
		}
	case "extend":
		lost := []any{}
		lease, _ := strconv.Atoi(text[0])
		for i := 3; i < len(text); i += 2 {
			l := queue.Leased{ID: text[i], Token: text[i+1]}
			if !f.extend(&l, time.Now().Add(time.Duration(lease)*time.Millisecond)) {
				lost = append(lost, l.Lease())
			}
		}
		return lost
	case "register":
		f.gone = false
		return []any{"ok", int64(0), int64(0), int64(0), queue.Layout, "1"}
	case "claim":
		return f.answerClaim(args, text)
	}
	return int64(1)
}

func (f *server) answerClaim(args []any, text []string) any {
	for i := 18; i < len(args); i += 2 {
		f.counted[text[i]] += args[i+1].(int)
	}
	lease, _ := strconv.Atoi(text[5])
	a := f.claim(&queue.Claim{
		Subscription: text[1], Number: args[2].(uint64), Limit: args[3].(int), Held: args[4].(int), Most: args[12].(int),
		Lease: time.Duration(lease) * time.Millisecond, Slots: args[6].(int), Address: text[7],
	}, time.Now())
	if a.Outcome == GroupGone {
		return []any{"unregistered"}
	}
	flag := map[bool]int64{true: 1}
	entries, bodies, expiries, since := "", []any{}, []any{}, "0"
	for _, m := range a.Messages {
		since = strings.Split(m.Token, ":")[2]
		if entries != "" {
			entries += " "
		}
		entries += m.ID + ":" + strconv.Itoa(f.messages[m.ID].place) // which the token ends with
		bodies = append(bodies, m.ID)
		expiries = append(expiries, int64(m.Expiries))
	}
	now := strconv.FormatInt(a.Now.UnixMilli(), 10)
	return []any{"", flag[a.More], int64(a.Blocked), flag[a.Waits], int64(0), entries, bodies, []any{}, now, expiries, since, "0", int64(a.Limits), ""}
}

// shell is a subscription in a bubble that runs, and its server.
type shell struct {
	t *testing.T
	*Subscription
	*server
	ended chan error       // Run's
	first *message.Message // the test's
}

// inShell runs a test in a bubble, with a subscription whose messages have their ids for UUIDs. All
// of its user code checks that no lock is held.
func inShell(t *testing.T, config Config, test func(t *testing.T, s *shell)) {
	t.Helper()
	inShellOf(t, nil, config, test)
}

// inShellOf is inShell for a subscription with that context.
func inShellOf(t *testing.T, ctx context.Context, config Config, test func(t *testing.T, s *shell)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shell{t: t, ended: make(chan error, 1), server: &server{fakeRedis: newFakeRedis(0), counted: map[string]int{}}}
		user := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		user.AddHook(s.server)
		client := servers.MustClient(user)
		mailbox, closeMailbox := wake.Open(client, "p")
		unmarshal := config.Unmarshal
		config.Unmarshal = func(topic string, body []byte) (*message.Message, error) {
			s.free("the Unmarshaler")
			if unmarshal != nil {
				return unmarshal(topic, body)
			}
			return message.NewMessage(string(body), nil), nil
		}
		config.Backoff = func(int) time.Duration { s.free("Backoff"); return 0 }
		if config.Logger == nil {
			config.Logger = watermill.NopLogger{}
		}
		config.Client, config.Mailbox, config.Topic = client, mailbox, queue.NewTopic(client, "p", "topic")
		config.Name, config.Group, config.LeaseDuration = "main", "group", modelLease
		if config.Common != nil {
			*config.Common = Common{Out: make(chan *message.Message), Budget: NewBudget(config.MaxInFlight)}
		}
		config.MaxExtension = maxDuration(config.MaxExtension)
		config.CloseTimeout = cmp.Or(config.CloseTimeout, time.Minute)
		if ctx == nil {
			ctx = t.Context()
		}
		s.Subscription = New(ctx, config)
		s.called = func() { s.free("the client's hook") }
		go func() { s.ended <- s.Subscription.Run() }()
		defer func() {
			s.Close()
			for config.Common == nil { // else nobody closes the channel
				if _, open := <-s.Messages(); !open {
					break
				}
				t.Error("a message was handed out after Close")
			}
			closeMailbox()
			require.NoError(t, user.Close())
			time.Sleep(time.Second) // the client's own goroutines end; the bubble reports all others
		}()
		synctest.Wait() // it has claimed once
		test(t, s)
	})
}

func maxDuration(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// free checks that this goroutine does not hold the subscription's lock: others do not for long.
func (s *shell) free(who string) {
	for range 100_000 {
		if s.Subscription.mu.TryLock() {
			s.Subscription.mu.Unlock()
			return
		}
		runtime.Gosched()
	}
	s.t.Errorf("%s is called under the lock", who)
}

// publish makes messages ready, and wakes the subscription.
func (s *shell) publish(n int) {
	s.change(func(f *server) { f.publish(n) })
	s.told("", nil)
	synctest.Wait()
}

// change changes the server, or looks at it.
func (s *shell) change(f func(f *server)) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	f(s.server)
}

// left is how many messages are not acked.
func (s *shell) left() (n int) {
	s.change(func(f *server) { n = len(f.messages) })
	return n
}

// next is the message that is handed out next.
func (s *shell) next() *message.Message {
	s.t.Helper()
	select {
	case msg := <-s.Messages():
		return msg
	case <-time.After(10 * time.Minute):
		s.t.Fatal("nothing is handed out")
		return nil
	}
}

// end waits for the end of Run.
func (s *shell) end() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(10 * time.Minute):
		s.t.Fatal("it does not end")
		return nil
	}
}

// hasNone checks that no message is on offer.
func (s *shell) hasNone() {
	s.t.Helper()
	synctest.Wait()
	select {
	case msg := <-s.Messages():
		s.t.Error("was handed out: ", msg.UUID)
	default:
	}
}
