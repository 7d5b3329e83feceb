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
// A message is "receiver argument", or "*" for all receivers of the process.
type Mailbox struct {
	prefix string
	rule   string // the ACL rule that allows the channels
	client *servers.Client
	users  int // guarded by mailboxes

	running context.Context // ends when the mailbox is closed
	stop    context.CancelFunc
	serving sync.WaitGroup // goroutines of boxes
	moved   atomic.Int64   // by how much Settle has moved the clock of Now, a time.Duration

	mu        sync.Mutex
	boxes     map[string]*box      // by the address of the server on which it listens
	receivers map[string]*Receiver // by name
	last      int                  // number of the last name
	lastLoss  time.Time            // when DataLost last woke the receivers

	holding atomic.Int64 // receivers that hold messages
}

// Func wakes a receiver with an argument. If settled is not nil, the receiver calls it once: when
// it has looked since, and all that it began then has ended, or when it ends itself. next is the
// time by the server's clock at which the receiver acts by itself. It is zero if there is none, or
// the receiver is not timed. A Func must not block.
type Func func(argument string, settled func(next time.Time))

// mailboxes are the process's open mailboxes.
var mailboxes = struct {
	sync.Mutex
	all  map[*Mailbox]struct{}
	open map[mailboxKey]*Mailbox // one for each client and prefix
}{all: map[*Mailbox]struct{}{}, open: map[mailboxKey]*Mailbox{}}

type mailboxKey struct {
	client redis.UniversalClient
	prefix string
}

// Open returns the process's mailbox for the client and prefix, and a function that gives it back.
// The mailbox ends when the last user gives it back. A client that cannot be the key of a map has a
// mailbox for each Open.
func Open(client *servers.Client, prefix string) (*Mailbox, func()) {
	mailboxes.Lock()
	defer mailboxes.Unlock()
	shared := reflect.ValueOf(client.User()).Comparable()
	key := mailboxKey{prefix: prefix}
	var m *Mailbox
	if shared {
		key.client = client.User()
		m = mailboxes.open[key]
	}
	if m == nil {
		m = newMailbox(client, prefix)
		mailboxes.all[m] = struct{}{}
		if shared {
			mailboxes.open[key] = m
		}
	}
	m.users++
	return m, sync.OnceFunc(func() {
		mailboxes.Lock()
		m.users--
		unused := m.users == 0
		if unused {
			delete(mailboxes.all, m)
			if shared {
				delete(mailboxes.open, key)
			}
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
		m.wakeAll()
		return
	}
	m.mu.Lock()
	r := m.receivers[receiver]
	m.mu.Unlock()
	if r != nil {
		r.wake(argument, nil)
	}
}

// Arguments with which a receiver is woken.
const (
	// Anew tells that the connection to the mailbox was made anew, is cut, or that its address may
	// have changed. Messages may be lost, and others may take the process for gone, until it shows
	// itself.
	Anew = "anew"

	// Sign tells that the connection answers late, so that the server may have closed it. Then
	// others take the process for gone, until it shows itself.
	Sign = "sign"
)

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
		m.wakeAll()
	}
}

// wakeAll wakes all receivers.
func (m *Mailbox) wakeAll() {
	for _, r := range m.all() {
		r.wake("", nil)
	}
}

// all returns the receivers.
func (m *Mailbox) all() []*Receiver {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.receivers))
}

// Receiver is one subscription or scheduler of a topic.
type Receiver struct {
	mailbox *Mailbox
	topic   *queue.Topic
	name    string
	wake    Func
	holds   bool // messages; guarded by Mailbox.mu
	timed   bool // it acts at times of the server's clock by itself
	box     *box // of its last address; nil: it has had none yet, or was stopped; guarded by Mailbox.mu
}

// Receive adds a receiver for a topic. Every message to its address calls wake with the message's
// argument. The mailbox also calls it with Anew, and with "" when data was lost.
func (m *Mailbox) Receive(topic *queue.Topic, wake Func) *Receiver {
	return m.receive(topic, wake, false)
}

// ReceiveTimed is Receive for a receiver that acts at times of the server's clock by itself, and
// tells them when it has settled.
func (m *Mailbox) ReceiveTimed(topic *queue.Topic, wake Func) *Receiver {
	return m.receive(topic, wake, true)
}

func (m *Mailbox) receive(topic *queue.Topic, wake Func, timed bool) *Receiver {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	r := &Receiver{mailbox: m, topic: topic, name: strconv.Itoa(m.last), wake: wake, timed: timed}
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

// Holds says whether the receiver has messages in hand. As long as one has, connections are tested
// each second.
func (r *Receiver) Holds(messages bool) {
	m := r.mailbox
	m.mu.Lock()
	defer m.mu.Unlock()
	r.hold(messages)
}

// hold is Holds. The caller holds Mailbox.mu.
func (r *Receiver) hold(messages bool) {
	if messages != r.holds {
		r.holds = messages
		r.mailbox.holding.Add(map[bool]int64{true: 1, false: -1}[messages])
	}
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
	r.hold(false)
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
