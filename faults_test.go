package redisdelay_test

import (
	"bytes"
	"context"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// hook holds or counts the script calls that match, before they go to Redis.
type hook struct {
	matches string // part of a key of the call
	arrived chan struct{}
	opened  chan struct{} // nil: nothing is held
	open    func()        // lets go what is held
	fault   error         // what matches fails with, instead of being sent

	mu     sync.Mutex
	free   int // calls that are not held, set before the first
	count  int
	failed int
	sent   int // calls under way
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

// match tells whether the calls are the hook's.
func (h *hook) match(cmds ...redis.Cmder) bool {
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			if key, ok := arg.(string); ok && strings.Contains(key, h.matches) {
				return true
			}
		}
	}
	return false
}

// pass sends the calls, when they are let go.
func (h *hook) pass(ctx context.Context, calls []redis.Cmder, next func() error) error {
	if !h.match(calls...) {
		return next()
	}
	h.mu.Lock()
	h.count++
	held := h.opened != nil && h.count > h.free
	h.mu.Unlock()
	if held {
		select {
		case h.arrived <- struct{}{}:
		default:
		}
		select {
		case <-h.opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := h.send(next)
	if err != nil && !redis.HasErrorPrefix(err, "NOSCRIPT") {
		h.mu.Lock()
		h.failed++
		h.mu.Unlock()
	}
	return err
}

// send sends calls, unless they are to fail.
func (h *hook) send(next func() error) error {
	h.mu.Lock()
	err := h.fault
	if err == nil {
		h.sent++
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.sent--
	}()
	return next()
}

// hold holds every call that matches until it is opened.
func hold(t *testing.T, client redis.UniversalClient, matches string) *hook {
	h := &hook{matches: matches, arrived: make(chan struct{}, 1), opened: make(chan struct{})}
	h.open = sync.OnceFunc(func() { close(h.opened) })
	t.Cleanup(h.open)
	client.AddHook(redistest.Hook(h.pass))
	return h
}

// gate holds every call of Publish to Redis until it is opened.
func gate(t *testing.T, client redis.UniversalClient) *hook { return hold(t, client, ":publisher:") }

// failing has calls fail, from fail(err) to fail(nil).
func failing(client redis.UniversalClient, matches string) *hook {
	h := &hook{matches: matches}
	client.AddHook(redistest.Hook(h.pass))
	return h
}

func (h *hook) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = err
}

// cut is fail, and waits until the server has answered what was sent before.
func (h *hook) cut(t *testing.T, err error) {
	t.Helper()
	h.fail(err)
	eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.sent == 0
	}, "all calls are answered")
}

// counter counts calls to Redis.
func counter(client redis.UniversalClient, matches string) *hook {
	h := &hook{matches: matches}
	client.AddHook(redistest.Hook(h.pass))
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
	lost   func() (lost bool)
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

// loseReplies has the replies to the next n requests that contain the marker get lost: the server
// has done what was asked, lost is called, and the connection breaks.
func (p *proxy) loseReplies(n int, marker string, lost func()) {
	p.meetReplies(n, marker, func() bool { lost(); return true })
}

// holdReply has the reply to the next request that contains the marker wait until pass is called:
// then it arrives, or is lost. It has come when arrived is closed.
func (p *proxy) holdReply(t *testing.T, marker string) (arrived <-chan struct{}, pass func(lost bool)) {
	came, lost := make(chan struct{}), make(chan bool, 2)
	t.Cleanup(func() { lost <- true })
	p.meetReplies(1, marker, func() bool { close(came); return <-lost })
	return came, func(loses bool) { lost <- loses }
}

func (p *proxy) meetReplies(n int, marker string, lost func() bool) {
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

		loses := make(chan func() bool, 16)
		p.wg.Go(func() { p.pump(in, out, func(data []byte) { p.noteRequest(data, loses) }, nil) })
		p.wg.Go(func() { p.pump(out, in, nil, loses) })
	}
}

func (p *proxy) noteRequest(data []byte, loses chan<- func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose > 0 && bytes.Contains(data, []byte(p.marker)) {
		p.lose--
		loses <- p.lost
	}
}

func (p *proxy) pump(from, to net.Conn, note func([]byte), loses <-chan func() bool) {
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
				if lost() {
					return
				}
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

// said returns the entries with a text.
func (b *logbook) said(text string) (found []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if e.text == text {
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
	for field, value := range fields {
		if _, twice := all[field]; twice {
			go panic("slog would write field " + field + " twice") // out of reach for those who recover
		}
		all[field] = value
	}
	return logger{l.book, all}
}
