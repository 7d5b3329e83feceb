package redisdelay_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

const (
	// soon is the time in which everything happens that happens, on a slow machine too.
	soon = 30 * time.Second

	// never is longer than any test.
	never = time.Hour

	tick = 5 * time.Millisecond
)

var ctx = context.Background()

// both runs a test on an embedded and on a real server, and checks what it leaves in Redis.
func both(t *testing.T, test func(t *testing.T, s redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		t.Cleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
		test(t, s)
	})
}

// embedded gives a test a server whose clock it may set.
func embedded(t *testing.T) redistest.Server {
	t.Helper()
	t.Parallel()
	mini, client := redistest.Embedded(t)
	s := redistest.Server{Client: client, Prefix: "test", Mini: mini}
	t.Cleanup(func() { queuetest.Check(t, s.Client, s.Prefix) })
	return s
}

// private gives a test a server of its own, to be stopped or emptied. Calls to it fail fast.
func private(t *testing.T, args ...string) (redistest.Server, *redistest.Instance) {
	t.Helper()
	t.Parallel()
	in := redistest.Start(t, args...)
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	return redistest.Server{Client: client, Prefix: "test"}, in
}

// drained checks, when the test is over, that no message is left.
func drained(t *testing.T, s redistest.Server) {
	t.Cleanup(func() {
		if !t.Failed() { // else it was not consumed
			queuetest.CheckDrained(t, s.Client, s.Prefix)
		}
	})
}

// jump sets the clock of an embedded server ahead. It stands still from then on.
func jump(t *testing.T, s redistest.Server, d time.Duration) {
	s.Mini.SetTime(serverTime(t, s).Add(d))
}

func serverTime(t testing.TB, s redistest.Server) time.Time {
	t.Helper()
	now, err := s.Client.Time(ctx).Result()
	require.NoError(t, err)
	return now
}

// another is one more client of the server.
func another(t *testing.T, s redistest.Server) *redis.Client {
	return clientOf(t, s.Client.(*redis.Client).Options().Addr)
}

func clientOf(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newPublisher(t *testing.T, s redistest.Server, change ...func(*redisdelay.PublisherConfig)) *redisdelay.Publisher {
	t.Helper()
	config := redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}
	for _, f := range change {
		f(&config)
	}
	p, err := redisdelay.NewPublisher(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// newSubscriber returns one whose nacks have no delay.
func newSubscriber(t *testing.T, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	return newLoggingSubscriber(t, s, nil, change...)
}

func newLoggingSubscriber(t *testing.T, s redistest.Server, logger watermill.LoggerAdapter, change ...func(*redisdelay.SubscriberConfig)) *redisdelay.Subscriber {
	t.Helper()
	config := redisdelay.SubscriberConfig{
		Client:       s.Client,
		KeyPrefix:    s.Prefix,
		Backoff:      func(int) time.Duration { return 0 },
		CloseTimeout: 2 * time.Second,
	}
	for _, f := range change {
		f(&config)
	}
	sub, err := redisdelay.NewSubscriber(config, logger)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

// subscribe subscribes a new Subscriber.
func subscribe(t *testing.T, s redistest.Server, topic string, change ...func(*redisdelay.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	return subscribeTo(t, newSubscriber(t, s, change...), topic)
}

func subscribeTo(t *testing.T, sub message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	return messages
}

func inGroup(name string) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = name }
}

func inFlight(n int) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = n }
}

func leaseOf(d time.Duration) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.LeaseDuration = d }
}

func through(client redis.UniversalClient) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.Client = client }
}

func closingWithin(d time.Duration) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.CloseTimeout = d }
}

// register makes the default group exist, so that what is published is ready at once.
func register(t *testing.T, s redistest.Server, topic string, groups ...string) {
	t.Helper()
	if len(groups) == 0 {
		groups = []string{redisdelay.DefaultConsumerGroup}
	}
	for _, g := range groups {
		require.NoError(t, newSubscriber(t, s, inGroup(g)).SubscribeInitialize(topic))
	}
}

// text makes a message that is told by its payload.
func text(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), message.Payload(payload))
}

func delayed(payload string, d time.Duration) *message.Message {
	msg := text(payload)
	redisdelay.DelayFor(msg, d)
	return msg
}

// numbered returns the texts from to to-1.
func numbered(from, to int) []string {
	var texts []string
	for i := from; i < to; i++ {
		texts = append(texts, fmt.Sprintf("%04d", i))
	}
	return texts
}

func publish(t testing.TB, p message.Publisher, topic string, payloads ...string) {
	t.Helper()
	messages := make([]*message.Message, len(payloads))
	for i, payload := range payloads {
		messages[i] = text(payload)
	}
	require.NoError(t, p.Publish(topic, messages...))
}

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-messages:
		require.True(t, open, "the channel was closed")
		return msg
	case <-time.After(soon):
		require.FailNow(t, "no message came")
		return nil
	}
}

// consume receives and acks n messages, and returns their payloads.
func consume(t testing.TB, messages <-chan *message.Message, n int) []string {
	t.Helper()
	payloads := make([]string, 0, n)
	for range n {
		msg := receive(t, messages)
		payloads = append(payloads, string(msg.Payload))
		require.True(t, msg.Ack())
	}
	return payloads
}

// requireClosed waits for the end of the subscription, and lets no message come before it.
func requireClosed(t testing.TB, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, open := <-messages:
		if open {
			require.FailNow(t, "a message came", "%s", msg.Payload)
		}
	case <-time.After(soon):
		require.FailNow(t, "the channel stays open")
	}
}

func wait[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		require.FailNow(t, "timeout waiting for "+what)
	}
	return v
}

// begin runs f on its own, and returns where its result comes.
func begin[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

func eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, soon, tick, what)
}

func deliveryOf(t testing.TB, msg *message.Message) redisdelay.Delivery {
	t.Helper()
	d, ok := redisdelay.DeliveryFromContext(msg.Context())
	require.True(t, ok, "the message's context has no Delivery")
	return d
}

// state counts what a topic has in Redis.
type state struct {
	Bodies, Pending, Ready, Unack, Retry, Dead int64
}

func stateOf(t testing.TB, s redistest.Server, topic string) state {
	t.Helper()
	return stateOfGroup(t, s, topic, redisdelay.DefaultConsumerGroup)
}

func stateOfGroup(t testing.TB, s redistest.Server, topic, group string) state {
	t.Helper()
	k := queue.NewKeys(s.Prefix, topic)
	p := s.Client.TxPipeline()
	counts := []*redis.IntCmd{
		p.HLen(ctx, k.Messages()), p.ZCard(ctx, k.Pending()), p.LLen(ctx, k.Ready(group)),
		p.ZCard(ctx, k.Unack(group)), p.ZCard(ctx, k.Retry(group)), p.ZCard(ctx, k.Dead(group)),
	}
	_, err := p.Exec(ctx)
	require.NoError(t, err)
	n := func(i int) int64 { return counts[i].Val() }
	return state{n(0), n(1), n(2), n(3), n(4), n(5)}
}

// records is what the default group knows of its messages' deliveries: "count flag delayed_for reason".
func records(t testing.TB, s redistest.Server, topic string) map[string]string {
	t.Helper()
	key := queue.NewKeys(s.Prefix, topic).Deliveries(redisdelay.DefaultConsumerGroup)
	found, err := s.Client.HGetAll(ctx, key).Result()
	require.NoError(t, err)
	return found
}

// keysOf returns all keys under the server's prefix.
func keysOf(t testing.TB, s redistest.Server) (keys []string) {
	t.Helper()
	it := s.Client.Scan(ctx, 0, s.Prefix+"*", 1000).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	require.NoError(t, it.Err())
	return keys
}

// hook holds or counts the script calls that match, before they go to Redis.
type hook struct {
	matches string // part of a key of the call
	arrived chan struct{}
	opened  chan struct{} // nil: nothing is held
	open    func()        // lets go what is held

	mu     sync.Mutex
	count  int
	failed int
}

func (h *hook) calls() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

func (h *hook) failures() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

func (h *hook) pass(ctx context.Context, cmds ...redis.Cmder) error {
	matched := false
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			key, ok := arg.(string)
			matched = matched || ok && strings.Contains(key, h.matches)
		}
	}
	if !matched {
		return nil
	}
	h.mu.Lock()
	h.count++
	h.mu.Unlock()
	if h.opened == nil {
		return nil
	}
	select {
	case h.arrived <- struct{}{}:
	default:
	}
	select {
	case <-h.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *hook) note(err error) error {
	if err != nil && err != redis.Nil && !strings.HasPrefix(err.Error(), "NOSCRIPT") {
		h.mu.Lock()
		h.failed++
		h.mu.Unlock()
	}
	return err
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.pass(ctx, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return h.note(next(ctx, cmd))
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.pass(ctx, cmds...); err != nil {
			return err
		}
		return h.note(next(ctx, cmds))
	}
}

// hold holds every call that matches until it is opened.
func hold(t *testing.T, client redis.UniversalClient, matches string) *hook {
	h := &hook{matches: matches, arrived: make(chan struct{}, 1), opened: make(chan struct{})}
	h.open = sync.OnceFunc(func() { close(h.opened) })
	t.Cleanup(h.open)
	client.AddHook(h)
	return h
}

// gate holds every call of Publish to Redis until it is opened.
func gate(t *testing.T, client redis.UniversalClient) *hook { return hold(t, client, ":publisher:") }

// counter counts calls to Redis.
func counter(client redis.UniversalClient, matches string) *hook {
	h := &hook{matches: matches}
	client.AddHook(h)
	return h
}

// proxy is a network between a client and a server that can be made to fail.
type proxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	flows  chan struct{} // closed: data flows
	conns  map[net.Conn]bool
	lose   int
	marker string
	lost   func()
}

func newProxy(t *testing.T, s redistest.Server) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{
		listener: listener,
		target:   s.Client.(*redis.Client).Options().Addr,
		flows:    make(chan struct{}),
		conns:    map[net.Conn]bool{},
	}
	close(p.flows)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.resume()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// client is one whose connections all go through the proxy.
func (p *proxy) client(t *testing.T) *redis.Client {
	return clientOf(t, p.listener.Addr().String())
}

// stall has nothing arrive any more, in either direction, while connections stay open.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = make(chan struct{})
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flows:
	default:
		close(p.flows)
	}
}

// loseReplies has the replies to the next n requests that contain the marker get lost: the server has
// done what was asked, lost is called, and the connection breaks.
func (p *proxy) loseReplies(n int, marker string, lost func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.marker, p.lost = n, marker, lost
}

func (p *proxy) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lose
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		p.mu.Lock()
		if err != nil || p.conns == nil {
			p.mu.Unlock()
			_ = in.Close()
			continue
		}
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()

		loses := make(chan func(), 16)
		p.wg.Go(func() { p.pump(in, out, func(data []byte) { p.noteRequest(data, loses) }, nil) })
		p.wg.Go(func() { p.pump(out, in, nil, loses) })
	}
}

func (p *proxy) noteRequest(data []byte, loses chan<- func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose > 0 && bytes.Contains(data, []byte(p.marker)) {
		p.lose--
		loses <- p.lost
	}
}

func (p *proxy) pump(from, to net.Conn, note func([]byte), loses <-chan func()) {
	defer from.Close()
	defer to.Close()
	data := make([]byte, 1<<16)
	for {
		n, err := from.Read(data)
		if n > 0 {
			p.mu.Lock()
			flows := p.flows
			p.mu.Unlock()
			<-flows
			if note != nil {
				note(data[:n])
			}
			select {
			case lost := <-loses:
				lost()
				return
			default:
			}
			if _, err := to.Write(data[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// logbook keeps what is logged.
type logbook struct {
	mu      sync.Mutex
	entries []entry
}

type entry struct {
	level, component, text string
	err                    error
	fields                 watermill.LogFields
}

func (b *logbook) logger() watermill.LoggerAdapter { return logger{b, nil} }

// count counts the entries of a level and component.
func (b *logbook) count(level, component string) (n int) {
	return len(b.find(level, component))
}

func (b *logbook) find(level, component string) (found []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if e.level == level && e.component == component {
			found = append(found, e)
		}
	}
	return found
}

type logger struct {
	book   *logbook
	fields watermill.LogFields
}

func (l logger) log(level, text string, err error, fields watermill.LogFields) {
	all := maps.Clone(l.fields)
	if all == nil {
		all = watermill.LogFields{}
	}
	maps.Copy(all, fields)
	component, _ := all["component"].(string)
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.book.entries = append(l.book.entries, entry{level, component, text, err, all})
}

func (l logger) Error(text string, err error, f watermill.LogFields) { l.log("error", text, err, f) }
func (l logger) Info(text string, f watermill.LogFields)             { l.log("info", text, nil, f) }
func (l logger) Debug(text string, f watermill.LogFields)            { l.log("debug", text, nil, f) }
func (l logger) Trace(text string, f watermill.LogFields)            { l.log("trace", text, nil, f) }

func (l logger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	all := watermill.LogFields{}
	maps.Copy(all, l.fields)
	maps.Copy(all, fields)
	return logger{l.book, all}
}
