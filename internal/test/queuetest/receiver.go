package queuetest

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// patience is how long a Receiver waits for what happens at once, on a busy machine.
const patience = 20 * time.Second

// Receiver is one receiver of a mailbox.
type Receiver struct {
	t       tb
	Address string
	Stop    func()
	Woken   chan string // the arguments of its wake-ups
}

// tb is what a Receiver needs of a test: a testing.T or a rapid.T.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
}

// Receive returns a new receiver of the mailbox of a single server.
func Receive(t tb, m *wake.Mailbox) *Receiver { return ReceiveFor(t, m, nil) }

// ReceiveFor returns a new receiver of a mailbox for a topic.
func ReceiveFor(t tb, m *wake.Mailbox, topic *queue.Topic) *Receiver {
	r := &Receiver{t: t, Woken: make(chan string, 1000)}
	receiver := m.Receive(topic, func(argument string, settled func(time.Time)) {
		if r.Woken <- argument; settled != nil {
			settled(time.Time{})
		}
	})
	r.Address, r.Stop = receiver.Address(context.Background()), receiver.Stop
	if topic != nil { // the server may have no sharded channels
		if err := m.Permitted(context.Background(), topic); err != nil {
			r.fail("may not listen: %v", err)
		}
		r.Address = receiver.Address(context.Background())
	}
	return r
}

// Argument waits for the next wake-up and returns its argument.
func (r *Receiver) Argument() string {
	r.t.Helper()
	select {
	case argument := <-r.Woken:
		return argument
	case <-time.After(patience):
		r.fail("%s is not woken", r.Address)
		return ""
	}
}

// Gets waits for an argument. It skips those that come when others may have been lost.
func (r *Receiver) Gets(want string) {
	r.t.Helper()
	for {
		got := r.Argument()
		if got == want || want == "" && got == wake.Anew {
			return
		}
		if got != "" && got != wake.Anew {
			r.fail("%s is woken with %q, not %q", r.Address, got, want)
		}
	}
}

// Connected waits until the mailbox is connected, and drops the wake-ups that come of that.
func (r *Receiver) Connected(client redis.UniversalClient) {
	r.t.Helper()
	publish := client.Publish
	if servers.Sharded(r.Channel()) {
		publish = client.SPublish
	}
	for end := time.Now().Add(patience); publish(context.Background(), r.Channel(), r.Name()+" connected").Val() == 0; {
		if time.Now().After(end) {
			r.fail("nobody listens to %q", r.Channel())
		}
		time.Sleep(time.Millisecond)
	}
	r.Gets("connected")
}

func (r *Receiver) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Errorf(format, args...)
	r.t.FailNow()
}

// Channel is the mailbox's channel.
func (r *Receiver) Channel() string { return r.Address[:strings.LastIndexByte(r.Address, '|')] }

// Name is what a message on the channel calls the receiver.
func (r *Receiver) Name() string { return r.Address[strings.LastIndexByte(r.Address, '|')+1:] }
