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
	client *queue.Client
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

// stars are the messages to all receivers that serveStars has not begun with.
type stars struct {
	came      bool
	questions map[string]struct{} // channels that wait for an answer
	serving   bool                // serveStars runs
}

// answers are the channels whose questions are to be answered now.
type answers struct {
	to     map[string]struct{}
	giving bool // giveAnswers runs
}

// mostQuestions is how many channels wait at most until all have looked, and then for their answer.
// More get none.
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
		prefix:    prefix,
		rule:      queue.MailboxRule(prefix),
		client:    client,
		another:   make(chan struct{}, 1),
		boxes:     map[string]*box{},
		receivers: map[string]*Receiver{},
	}
	m.running, m.stop = context.WithCancel(context.Background())
	if !client.Cluster() {
		m.open(queue.OnlyServer, nil)
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

// serveStars wakes all receivers for the messages that came to all of them, and has the questions
// among these answered, until there are none. A message that comes while receivers look wakes them
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
		m.answer(questions)
	}
}

// answer has giveAnswers answer questions. It waits for no server, which may hang.
func (m *Mailbox) answer(questions map[string]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers.to == nil {
		m.answers.to = map[string]struct{}{}
	}
	for channel := range questions {
		if len(m.answers.to) < mostQuestions {
			m.answers.to[channel] = struct{}{}
		}
	}
	if !m.answers.giving {
		m.answers.giving = true
		go m.giveAnswers()
	}
}

// giveAnswers answers questions, one after the other, until there are none or the mailbox is
// closed. Nobody waits for its end, which may come when the client gives up a call. An answer may
// get lost, because the process that asked has a timeout.
func (m *Mailbox) giveAnswers() {
	for {
		m.mu.Lock()
		var channel string
		for channel = range m.answers.to {
			break
		}
		if len(m.answers.to) == 0 || m.running.Err() != nil {
			m.answers = answers{}
			m.mu.Unlock()
			return
		}
		delete(m.answers.to, channel)
		m.mu.Unlock()
		_, _ = publish(m.running, m.client, channel)
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

// serverOf returns the server that has the topic.
func serverOf(ctx context.Context, m *Mailbox, topic *queue.Topic) (string, error) {
	if !m.client.Cluster() {
		return queue.OnlyServer, nil
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

// Permitted returns queue.ErrForbidden if the user of the topic's server may not listen there. It
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
	return min(5*time.Second+time.Duration(len(m.receivers))*25*time.Millisecond, time.Minute)
}

// channelsOf returns the channels of addresses, and which of them are sharded. An empty address has
// none.
func channelsOf(addresses []string) (channels, sharded []string) {
	for _, address := range addresses {
		if end := strings.LastIndexByte(address, '|'); end >= 0 {
			if channel := address[:end]; queue.Sharded(channel) {
				sharded = append(sharded, channel)
			} else {
				channels = append(channels, channel)
			}
		}
	}
	return channels, sharded
}

// withReceivers returns those of the channels that have receivers on the server that c asks.
func withReceivers(ctx context.Context, c redis.UniversalClient, channels, sharded []string) (map[string]bool, error) {
	found := map[string]bool{}
	for _, ask := range []struct {
		channels []string
		count    func(context.Context, ...string) *redis.MapStringIntCmd
	}{{channels, c.PubSubNumSub}, {sharded, c.PubSubShardNumSub}} {
		for some := range slices.Chunk(ask.channels, 1000) {
			receivers, err := ask.count(ctx, some...).Result()
			if err != nil {
				return found, err
			}
			for channel, n := range receivers {
				if n > 0 {
					found[channel] = true
				}
			}
		}
	}
	return found, nil
}

// Listening tells whether the process of at least one address is connected now to its mailbox on
// the topic's server, the only one that is asked. An empty address has no process. If the server's
// user may not ask, Listening returns true.
func Listening(ctx context.Context, client *queue.Client, topic *queue.Topic, addresses ...string) (bool, error) {
	channels, sharded := channelsOf(addresses)
	if len(channels)+len(sharded) == 0 {
		return false, nil
	}
	found, err := ask(ctx, client, topic, channels, sharded)
	if errors.Is(queue.Refused(err), queue.ErrForbidden) {
		return true, nil
	}
	return len(found) > 0, err
}

// ask returns those of the channels that have receivers on the topic's server.
func ask(ctx context.Context, client *queue.Client, topic *queue.Topic, channels, sharded []string) (map[string]bool, error) {
	return queue.AskMaster(ctx, client, topic.Key(), func(ctx context.Context, c redis.UniversalClient) (map[string]bool, error) {
		return withReceivers(ctx, c, channels, sharded)
	})
}

// Addressed are addresses of processes that work for a topic.
type Addressed struct {
	Topic     *queue.Topic
	Addresses []string
}

// answersIn is for how long Gone waits for a server that does not answer, at least. It goes on for
// half a second more until the server counts as lost.
const answersIn = time.Second

// Gone returns those addresses whose processes are not connected to their mailboxes now. It asks
// each topic's server about the topic's addresses, all servers at the same time. If a server does
// not answer soon, or its user may not ask, Gone returns the error, and none of the server's
// addresses is among those that it returns.
func Gone(ctx context.Context, client *queue.Client, all []Addressed) (gone map[string]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	gone = map[string]bool{}
	for _, some := range queue.PerNode(ctx, client, all, func(a Addressed) string { return a.Topic.Key() }) {
		asking.Go(func() {
			var addresses []string
			for _, a := range some {
				addresses = append(addresses, a.Addresses...)
			}
			channels, sharded := channelsOf(addresses)
			slices.Sort(channels)
			slices.Sort(sharded)
			var found map[string]bool
			var err error
			if len(channels)+len(sharded) > 0 {
				found, err = ask(ctx, client, some[0].Topic, slices.Compact(channels), slices.Compact(sharded))
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			for _, address := range addresses {
				if end := strings.LastIndexByte(address, '|'); end < 0 || !found[address[:end]] {
					gone[address] = true
				}
			}
		})
	}
	asking.Wait()
	return gone, queue.RefusedTo("see who is connected", "pubsub|numsub", errors.Join(errs...))
}
