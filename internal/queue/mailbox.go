package queue

import (
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
)

// Mailbox is where a process is woken: one Redis Pub/Sub channel, hence one connection, however many
// subscriptions and schedulers there are. A message on it is "receiver argument", or "*" for all; or "* channel",
// after which the process says on that channel when all have looked.
type Mailbox struct {
	channel string
	client  *Client
	done    chan struct{}

	running context.Context // until it is closed
	stop    context.CancelFunc
	answers sync.WaitGroup // under way

	mu        sync.Mutex
	receivers map[string]Wake
	last      int
	lastLoss  time.Time
	denied    error // ErrForbidden, for as long as the server's user may not listen

	asked chan struct{} // closed when the server has answered, or did not
}

// Wake is called with what a receiver is told. If done is not nil, the receiver calls it when it has looked since,
// or has nothing to look for any more. It must not block.
type Wake func(argument string, done func())

// mailboxes are the process's open mailboxes, shared by all that use the same client and prefix.
var mailboxes = struct {
	sync.Mutex
	open map[mailboxKey]*sharedMailbox
}{open: map[mailboxKey]*sharedMailbox{}}

type mailboxKey struct {
	client redis.UniversalClient
	prefix string
}

type sharedMailbox struct {
	*Mailbox
	users int
}

// OpenMailbox returns the process's mailbox for the client and prefix, and what closes it for this
// user. The last user's closing ends its connection and goroutine.
func OpenMailbox(client *Client, prefix string) (*Mailbox, func()) {
	if !reflect.ValueOf(client.UniversalClient).Comparable() {
		m := newMailbox(client, prefix)
		return m, sync.OnceFunc(m.close)
	}
	key := mailboxKey{client.UniversalClient, prefix}
	mailboxes.Lock()
	defer mailboxes.Unlock()
	shared := mailboxes.open[key]
	if shared == nil {
		shared = &sharedMailbox{Mailbox: newMailbox(client, prefix)}
		mailboxes.open[key] = shared
	}
	shared.users++
	return shared.Mailbox, sync.OnceFunc(func() {
		mailboxes.Lock()
		shared.users--
		unused := shared.users == 0
		if unused {
			delete(mailboxes.open, key)
		}
		mailboxes.Unlock()
		if unused {
			shared.close()
		}
	})
}

func newMailbox(client *Client, prefix string) *Mailbox {
	m := &Mailbox{
		channel:   MailboxChannel(prefix, Token()),
		client:    client,
		done:      make(chan struct{}),
		asked:     make(chan struct{}),
		receivers: map[string]Wake{},
	}
	m.running, m.stop = context.WithCancel(context.Background())
	go m.listen(client.Subscribe(context.Background()))
	return m
}

func (m *Mailbox) close() {
	m.stop()
	<-m.done
	m.answers.Wait()
}

// listen passes on what comes, until the mailbox is closed. go-redis connects again by itself, and
// reports each connection.
func (m *Mailbox) listen(pubsub *redis.PubSub) {
	defer close(m.done)
	ended := context.AfterFunc(m.running, func() { _ = pubsub.Close() }) // so that no answer is waited for
	defer ended()
	err := m.subscribe(pubsub)
	close(m.asked)
	for errors.Is(err, ErrForbidden) && m.running.Err() == nil {
		select {
		case <-m.running.Done():
		case <-time.After(time.Second): // the permission may be given meanwhile, and go-redis asks only once
			err = m.subscribe(pubsub)
		}
	}
	if err == nil {
		m.wakeAll(nil) // they may have looked before
	}
	hearing := newHearing(m.client, m.channel, false)
	defer hearing.end()
	events := hearing.listen(m.running, pubsub)
	for {
		select {
		case <-m.running.Done(): // it may be making a connection, which is not waited for
			return
		case event, open := <-events:
			switch event := event.(type) {
			case *redis.Subscription:
				m.wakeAll(nil) // what was sent while there was no connection is lost
			case *redis.Message:
				m.deliver(event.Payload)
			}
			if !open { // the client was closed
				return
			}
		}
	}
}

// subscribe subscribes to the mailbox's channel, and keeps a refusal.
func (m *Mailbox) subscribe(pubsub *redis.PubSub) error {
	err := subscribe(m.running, pubsub, m.channel)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denied = nil
	if errors.Is(err, ErrForbidden) {
		m.denied = err
	}
	return err
}

// Permitted is ErrForbidden if the server's user may not listen to the mailbox. It waits for the server's first answer.
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

func (m *Mailbox) deliver(payload string) {
	receiver, argument, _ := strings.Cut(payload, " ")
	if receiver == "*" {
		var looked func()
		if argument != "" {
			looked = func() { m.answer(argument) }
		}
		m.wakeAll(looked)
		return
	}
	m.mu.Lock()
	wake := m.receivers[receiver]
	m.mu.Unlock()
	if wake != nil {
		wake(argument, nil)
	}
}

// ReadWait reads what a scheduler is told: how many milliseconds until an event. 0, if it is anything else: to
// look at once does no harm.
func ReadWait(argument string) time.Duration {
	ms, err := strconv.ParseFloat(argument, 64)
	if err != nil || !(ms > 0) {
		return 0
	}
	return time.Duration(min(ms, longestWait) * float64(time.Millisecond))
}

// longestWait is about 250 years in milliseconds, which a time.Duration can hold.
const longestWait = 8e12

// answer says on a channel that all receivers have looked.
func (m *Mailbox) answer(channel string) {
	m.answers.Go(func() {
		_ = m.client.Publish(m.running, channel, "").Err() // who asked waits for no answer for ever
	})
}

// DataLost wakes all receivers, since what one has found gone from Redis is gone for all. Of many calls
// within a second, one does.
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

// wakeAll wakes all receivers. If looked is not nil, it is called when all have looked since.
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

// Receive has wake called for every message to the returned address, with its argument, and with ""
// whenever messages may have been lost. Calling stop ends it.
func (m *Mailbox) Receive(wake Wake) (address string, stop func()) {
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

// Poll is how often each of the mailbox's receivers should look by itself, in case a wake-up was
// lost: every few seconds, and more rarely the more there are, so that the sum stays small.
func (m *Mailbox) Poll() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(5*time.Second+time.Duration(len(m.receivers))*25*time.Millisecond, time.Minute)
}

// Listening tells whether the process of any of some addresses is connected to its mailbox now. Empty addresses
// are nobody's. Where the server does not let us ask, whoever has an address is taken to be.
func Listening(ctx context.Context, client *Client, addresses ...string) (bool, error) {
	var channels []string
	for _, address := range addresses {
		if end := strings.LastIndexByte(address, '|'); end >= 0 {
			channels = append(channels, address[:end])
		}
	}
	if len(channels) == 0 {
		return false, nil
	}
	var found atomic.Bool
	err := client.EachNode(ctx, func(ctx context.Context, node Node) error { // each knows its own receivers only
		receivers, err := node.PubSubNumSub(ctx, channels...).Result()
		for _, n := range receivers {
			if n > 0 {
				found.Store(true)
			}
		}
		return err
	})
	if found.Load() || redis.HasErrorPrefix(err, "NOPERM") {
		return true, nil
	}
	return false, err
}
