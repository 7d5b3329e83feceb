// Package wake has the mailboxes by which subscriptions and schedulers are woken: Pub/Sub
// connections that test themselves, the wake-ups that come over them, and the announcements of new
// topics.
package wake

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Mailbox is one Redis Pub/Sub channel on which a process is woken, with one connection for all its
// subscriptions and schedulers. A message on it is "receiver argument", or "*" for all receivers.
// After "* channel" the process publishes an empty text on that channel when all receivers have
// looked since. One goroutine serves all messages to all receivers, so that a flood of them starts
// no more.
type Mailbox struct {
	channel string
	rule    string // the ACL rule that allows the channel
	client  *queue.Client
	users   int // guarded by mailboxes
	done    chan struct{}

	running context.Context // ends when the mailbox is closed
	stop    context.CancelFunc
	serving sync.WaitGroup // of serveStars, under way

	mu        sync.Mutex
	receivers map[string]Func // by name
	last      int             // number of the last name
	lastLoss  time.Time       // when DataLost last woke the receivers
	denied    error           // queue.ErrForbidden while the server's user may not listen, else nil
	stars     stars           // messages to all receivers

	another chan struct{} // holds one element if one came after serveStars took the others

	asked chan struct{} // closed when the first SUBSCRIBE was answered, or had no answer in time
}

// stars are the messages to all receivers that serveStars has not begun with.
type stars struct {
	came      bool
	questions map[string]struct{} // channels that wait for an answer
	serving   bool                // serveStars runs
}

// mostQuestions is how many channels wait for an answer at most. More get none.
const mostQuestions = 100

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
func Open(client *queue.Client, prefix string) (*Mailbox, func()) {
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

func newMailbox(client *queue.Client, prefix string) *Mailbox {
	m := &Mailbox{
		channel:   queue.MailboxChannel(prefix, queue.Token()),
		rule:      queue.MailboxRule(prefix),
		client:    client,
		done:      make(chan struct{}),
		asked:     make(chan struct{}),
		another:   make(chan struct{}, 1),
		receivers: map[string]Func{},
	}
	m.running, m.stop = context.WithCancel(context.Background())
	go m.listen()
	return m
}

func (m *Mailbox) close() {
	m.stop()
	<-m.done
	m.serving.Wait()
}

// listen wakes receivers by what comes, until the mailbox is closed. go-redis reports each
// connection that it makes anew.
func (m *Mailbox) listen() {
	defer close(m.done)
	pubsub, err := m.subscribe(nil)
	close(m.asked)
	for errors.Is(err, queue.ErrForbidden) && m.running.Err() == nil {
		select {
		case <-m.running.Done():
		case <-time.After(connectAgain): // the user may get the permission; go-redis asks only once
			pubsub, err = m.subscribe(pubsub)
		}
	}
	if err == nil {
		m.wakeAll(nil) // receivers may have looked before the connection was there
	}
	listener := newListener(m.client, m.channel, false)
	defer listener.end()
	events := listener.listen(m.running, pubsub)
	for {
		select {
		case <-m.running.Done(): // the events may end later, while a connection is being made
			return
		case event, open := <-events:
			switch event := event.(type) {
			case *redis.Subscription:
				m.wakeAll(nil) // messages may have been lost while there was no connection
			case *redis.Message:
				m.deliver(event.Payload)
			}
			if !open { // the client was closed
				return
			}
		}
	}
}

// subscribe subscribes to the mailbox's channel, over a new connection if pubsub is nil. It keeps a
// refusal for Permitted.
func (m *Mailbox) subscribe(pubsub *redis.PubSub) (*redis.PubSub, error) {
	pubsub, err := subscribe(m.running, m.client, pubsub, m.channel, m.rule)
	var denied error
	if errors.Is(err, queue.ErrForbidden) {
		denied = err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denied = denied
	return pubsub, err
}

// Permitted returns queue.ErrForbidden if the server's user may not listen to the mailbox. It waits
// for the server's first answer, and returns the context's error if that ends before.
func (m *Mailbox) Permitted(ctx context.Context) error {
	select {
	case <-m.asked:
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.denied
}

// deliver wakes the receivers that a message names.
func (m *Mailbox) deliver(payload string) {
	receiver, argument, _ := strings.Cut(payload, " ")
	if receiver == "*" {
		m.deliverToAll(argument)
		return
	}
	m.mu.Lock()
	wake := m.receivers[receiver]
	m.mu.Unlock()
	if wake != nil {
		wake(argument, nil)
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

// deliverToAll has serveStars wake all receivers, and then answer on the channel unless it is "".
func (m *Mailbox) deliverToAll(channel string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stars.came = true
	if channel != "" && len(m.stars.questions) < mostQuestions {
		if m.stars.questions == nil {
			m.stars.questions = map[string]struct{}{}
		}
		m.stars.questions[channel] = struct{}{}
	}
	if !m.stars.serving {
		m.stars.serving = true
		m.serving.Go(m.serveStars)
	}
	select {
	case m.another <- struct{}{}:
	default:
	}
}

// takeStars returns the channels that wait for an answer. If no message has come to all receivers,
// came is false, and serveStars has to end.
func (m *Mailbox) takeStars() (questions map[string]struct{}, came bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	questions, came = m.stars.questions, m.stars.came
	m.stars = stars{serving: came}
	select {
	case <-m.another:
	default:
	}
	return questions, came
}

// serveStars wakes all receivers for the messages that came to all of them, and answers the
// questions among these, until there are none. A message that comes while receivers look wakes them
// again. Its question is answered after they have looked once more.
func (m *Mailbox) serveStars() {
	for {
		questions, came := m.takeStars()
		if !came {
			return
		}
		if len(questions) == 0 {
			m.wakeAll(nil)
			continue
		}
		looked := make(chan struct{})
		m.wakeAll(func() { close(looked) })
		for waiting := true; waiting; {
			select {
			case <-looked:
				waiting = false
			case <-m.another:
				m.wakeAll(nil)
			case <-m.running.Done():
				return
			}
		}
		for channel := range questions {
			// The process that asked has a timeout.
			_ = m.client.Call(func(c redis.UniversalClient) error { return c.Publish(m.running, channel, "").Err() })
		}
	}
}

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
	for _, wake := range all {
		wake("", done)
	}
}

// Receive adds a receiver, and returns its address and a function that removes it. Every message to
// the address calls wake with the message's argument. The mailbox also calls it with "" whenever
// messages may have been lost.
func (m *Mailbox) Receive(wake Func) (address string, stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	receiver := strconv.Itoa(m.last)
	m.receivers[receiver] = wake
	return m.channel + "|" + receiver, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.receivers, receiver)
	}
}

// Poll returns the interval at which each receiver should look by itself, in case a wake-up was
// lost. It grows with the number of receivers, so that the load of all stays small.
func (m *Mailbox) Poll() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(5*time.Second+time.Duration(len(m.receivers))*25*time.Millisecond, time.Minute)
}

// Listening tells whether the process of at least one address is connected to its mailbox now. An
// empty address has no process. If the server's user may not ask, Listening returns true.
func Listening(ctx context.Context, client *queue.Client, addresses ...string) (bool, error) {
	found, err := Listeners(ctx, client, addresses)
	if len(found) > 0 || errors.Is(err, queue.ErrForbidden) {
		return true, nil
	}
	return false, err
}

// Listeners returns those addresses whose processes are connected to their mailboxes now. It
// returns them with an error, too, if only some nodes of a Cluster have answered.
func Listeners(ctx context.Context, client *queue.Client, addresses []string) (map[string]bool, error) {
	var channels []string
	for _, address := range addresses {
		if end := strings.LastIndexByte(address, '|'); end >= 0 {
			channels = append(channels, address[:end])
		}
	}
	slices.Sort(channels)
	channels = slices.Compact(channels)
	var mu sync.Mutex
	connected, found := map[string]bool{}, map[string]bool{}
	var failed error
	for some := range slices.Chunk(channels, 1000) {
		// A node knows its own receivers only.
		err := client.EachNode(ctx, func(ctx context.Context, node queue.Node) error {
			receivers, err := queue.Ask(node, func(c redis.UniversalClient) (map[string]int64, error) {
				return c.PubSubNumSub(ctx, some...).Result()
			})
			mu.Lock()
			defer mu.Unlock()
			for channel, n := range receivers {
				connected[channel] = connected[channel] || n > 0
			}
			return err
		})
		failed = cmp.Or(failed, queue.RefusedTo("see who is connected", "pubsub|numsub", err))
	}
	for _, address := range addresses {
		if end := strings.LastIndexByte(address, '|'); end >= 0 && connected[address[:end]] {
			found[address] = true
		}
	}
	return found, failed
}
