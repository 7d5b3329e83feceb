// Package wake has the mailboxes by which subscriptions and schedulers are woken: Pub/Sub
// connections that test themselves, the wake-ups that come over them, and the announcements of new
// topics.
package wake

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Mailbox is where a process is woken. It has a Redis Pub/Sub channel with a connection of its own
// for all subscriptions and schedulers of the process. In a Cluster it has one for each master that
// has topics of these. Such a channel with its connection is a box.
//
// A message is "receiver argument", or "*" for all receivers of the process. After "* channel" the
// process publishes an empty text on that channel when all receivers have looked since. One
// goroutine serves all messages to all receivers, and another answers, so that a flood of messages
// starts no more.
type Mailbox struct {
	prefix string
	rule   string // the ACL rule that allows the channels
	client *servers.Client
	users  int // guarded by mailboxes

	running context.Context // ends when the mailbox is closed
	stop    context.CancelFunc
	serving sync.WaitGroup // goroutines of boxes, and of serveStars

	mu        sync.Mutex
	boxes     map[string]*box      // by the address of the server on which it listens
	receivers map[string]*Receiver // by name
	last      int                  // number of the last name
	lastLoss  time.Time            // when DataLost last woke the receivers
	stars     stars                // messages to all receivers
	answers   answers

	another chan struct{} // holds one element if a message to all came after serveStars took the others
}

// Func wakes a receiver with an argument. If done is not nil, the receiver calls it when it has
// looked since, or has nothing to look for any more. A Func must not block.
type Func func(argument string, done func())

// mailboxes are the process's open mailboxes, one for each client and prefix.
var mailboxes = struct {
	sync.Mutex
	open map[mailboxKey]*Mailbox
}{open: map[mailboxKey]*Mailbox{}}

type mailboxKey struct {
	client redis.UniversalClient
	prefix string
}

// Open returns the process's mailbox for the client and prefix, and a function that gives it back.
// The mailbox ends when the last user gives it back. A client that cannot be the key of a map has a
// mailbox for each Open.
func Open(client *servers.Client, prefix string) (*Mailbox, func()) {
	if !reflect.ValueOf(client.User()).Comparable() {
		m := newMailbox(client, prefix)
		return m, sync.OnceFunc(m.close)
	}
	key := mailboxKey{client.User(), prefix}
	mailboxes.Lock()
	defer mailboxes.Unlock()
	m := mailboxes.open[key]
	if m == nil {
		m = newMailbox(client, prefix)
		mailboxes.open[key] = m
	}
	m.users++
	return m, sync.OnceFunc(func() {
		mailboxes.Lock()
		m.users--
		unused := m.users == 0
		if unused {
			delete(mailboxes.open, key)
		}
		mailboxes.Unlock()
		if unused {
			m.close()
		}
	})
}

func newMailbox(client *servers.Client, prefix string) *Mailbox {
	m := &Mailbox{
		prefix:    prefix,
		rule:      queue.MailboxRule(prefix),
		client:    client,
		another:   make(chan struct{}, 1),
		boxes:     map[string]*box{},
		receivers: map[string]*Receiver{},
	}
	m.running, m.stop = context.WithCancel(context.Background())
	if !client.Cluster() {
		m.open(servers.OnlyServer, nil)
	}
	return m
}

func (m *Mailbox) close() {
	m.stop()
	m.serving.Wait()
}

// deliver wakes the receivers that a message names.
func (m *Mailbox) deliver(payload string) {
	receiver, argument, _ := strings.Cut(payload, " ")
	if receiver == "*" {
		m.deliverToAll(argument)
		return
	}
	m.mu.Lock()
	r := m.receivers[receiver]
	m.mu.Unlock()
	if r != nil {
		r.wake(argument, nil)
	}
}

// ReadWait reads the argument that wakes a scheduler: the milliseconds until an event. It returns 0
// for any other text, because a scheduler may look at any time.
func ReadWait(argument string) time.Duration {
	ms, err := strconv.ParseFloat(argument, 64)
	if err != nil || !(ms > 0) {
		return 0
	}
	return time.Duration(min(ms, longestWait) * float64(time.Millisecond))
}

// longestWait is about 250 years in milliseconds, which a time.Duration can hold.
const longestWait = 8e12

// DataLost wakes all receivers, because data that one of them found gone from Redis is gone for
// all. It does nothing within a second after it last did.
func (m *Mailbox) DataLost() {
	m.mu.Lock()
	now := time.Now()
	known := now.Sub(m.lastLoss) < time.Second
	if !known {
		m.lastLoss = now
	}
	m.mu.Unlock()
	if !known {
		m.wakeAll(nil)
	}
}

// wakeAll wakes all receivers. It calls looked, unless that is nil, when all have looked since.
func (m *Mailbox) wakeAll(looked func()) {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.receivers))
	m.mu.Unlock()
	var done func()
	if looked != nil {
		var left atomic.Int64
		left.Store(int64(len(all)) + 1)
		done = func() {
			if left.Add(-1) == 0 {
				looked()
			}
		}
		defer done()
	}
	for _, r := range all {
		r.wake("", done)
	}
}

// Receiver is one subscription or scheduler of a topic.
type Receiver struct {
	mailbox *Mailbox
	topic   *queue.Topic
	name    string
	wake    Func
	box     *box // of its last address; nil: it has had none yet, or was stopped; guarded by Mailbox.mu
}

// Receive adds a receiver for a topic. Every message to its address calls wake with the message's
// argument. The mailbox also calls it with "" whenever messages may have been lost, or when its
// address may have changed.
func (m *Mailbox) Receive(topic *queue.Topic, wake Func) *Receiver {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	r := &Receiver{mailbox: m, topic: topic, name: strconv.Itoa(m.last), wake: wake}
	m.receivers[r.name] = r
	return r
}

// Address returns the address by which scripts wake the receiver. In a Cluster it names the box on
// the topic's master. That changes with a failover or a slot migration, so each claim and each look
// of a scheduler asks for it anew. Only the receiver's own goroutine calls it.
func (r *Receiver) Address(ctx context.Context) string {
	server, err := serverOf(ctx, r.mailbox, r.topic)
	m := r.mailbox
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && r.box != nil { // the claim or look fails too
		return r.box.channel + "|" + r.name
	}
	if r.box == nil || r.box != m.boxes[server] {
		before := r.box
		r.box = m.open(server, r.topic)
		if before != nil {
			before.leave()
		}
	}
	return r.box.channel + "|" + r.name
}

// Denied returns refusal.ErrForbidden if the server has refused to let the user listen on the
// channel of the receiver's last address. It does not wait for the server's answer.
func (r *Receiver) Denied() error {
	m := r.mailbox
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.box == nil {
		return nil
	}
	return r.box.denied
}

// serverOf returns the server that has the topic.
func serverOf(ctx context.Context, m *Mailbox, topic *queue.Topic) (string, error) {
	if !m.client.Cluster() {
		return servers.OnlyServer, nil
	}
	return topic.Master(ctx)
}

// Stop removes the receiver.
func (r *Receiver) Stop() {
	m := r.mailbox
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.receivers, r.name)
	if r.box != nil {
		r.box.leave()
		r.box = nil
	}
}

// Permitted returns refusal.ErrForbidden if the user of the topic's server may not listen there. It
// waits for the server's first answer, and returns the context's error if that ends before. It
// leaves the connection to the receiver that comes next.
func (m *Mailbox) Permitted(ctx context.Context, topic *queue.Topic) error {
	server, err := serverOf(ctx, m, topic)
	if err != nil {
		return nil // the calls that follow say so
	}
	m.mu.Lock()
	b := m.open(server, topic)
	m.mu.Unlock()
	select {
	case <-b.asked:
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err = cmp.Or(err, b.denied); err == nil {
		b.keep()
	} else {
		b.leave()
	}
	return err
}

// Poll returns the interval at which each receiver should look by itself, in case a wake-up was
// lost. It grows with the number of receivers, so that the load of all stays small.
func (m *Mailbox) Poll() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(5*time.Second+time.Duration(len(m.receivers))*25*time.Millisecond, longestPoll)
}

// longestPoll is less than queue.SignValid, also with Jitter.
const longestPoll = time.Minute

// Jitter returns between 0.9 and 1.1 of d, so that subscriptions and schedulers do not all act at
// once.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
