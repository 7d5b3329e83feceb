package faulttest

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Proxy is a network proxy between workers and a server, which simulates faults. It knows which
// reply belongs to which call.
type Proxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu      sync.Mutex
	conns   map[*proxied]bool
	delay   time.Duration
	flows   chan struct{} // closed: data flows
	refuses bool
	chooses func(call []string) bool
	swallow int
	silent  bool // keep the connection open instead of cutting it
	same    bool // only the first chosen call loses its replies, each time it is sent
	chosen  []string
	gone    int // replies that were dropped
	calls   int // calls received
	held    int // calls and replies received during Stall
	missed  int // connections that failed because there was no server

	failing  time.Time // start of the present fault; zero: there is none
	failures []Event   // Outage
}

// proxies has all proxies, by address.
var proxies sync.Map

// NewProxy returns a proxy to an address, which ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{listener: listener, target: target, conns: map[*proxied]bool{}, flows: make(chan struct{})}
	close(p.flows)
	p.wg.Go(p.accept)
	proxies.Store(listener.Addr().String(), p)
	t.Cleanup(func() {
		proxies.Delete(listener.Addr().String())
		_ = listener.Close()
		p.Resume()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Place returns the place of the server through the proxy.
func (p *Proxy) Place() Place { return At(p.listener.Addr().String()) }

// Cut cuts all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.cut()
	}
}

// Refuse cuts all connections, and refuses new ones until Refuse(false).
func (p *Proxy) Refuse(refuses bool) {
	p.mu.Lock()
	p.refuses = refuses
	p.noteFailure("connections are refused")
	p.mu.Unlock()
	if refuses {
		p.Cut()
	}
}

// Delay delays all data by d, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	p.noteFailure("the network is slow")
}

// Stall stops all data, in both directions. Connections stay open and new ones can be made, so that
// they are half open.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = make(chan struct{})
	p.noteFailure("nothing arrives")
}

// Resume ends Stall. The held data arrives.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flows:
	default:
		close(p.flows)
	}
	p.noteFailure("")
}

// slow is the shortest delay that counts as an outage.
const slow = 50 * time.Millisecond

// noteFailure records when a fault begins and when none is left. p.mu is held.
func (p *Proxy) noteFailure(why string) {
	flows := false
	select {
	case <-p.flows:
		flows = true
	default:
	}
	fails := p.refuses || p.delay >= slow || !flows
	switch now := time.Now(); {
	case fails && p.failing.IsZero():
		p.failing = now
		p.failures = append(p.failures, Event{Kind: Outage, Sent: now.UnixNano(), Err: why})
	case !fails && !p.failing.IsZero():
		p.failing = time.Time{}
		p.failures[len(p.failures)-1].At = now.UnixNano()
	}
}

// outages returns the times when the server could not be reached through the proxy.
func (p *Proxy) outages() []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.failures) // a present outage ends when it is written down
}

// Swallow drops the replies to the next n chosen calls, and cuts their connections. The server has
// executed the calls.
func (p *Proxy) Swallow(n int, chooses func(call []string) bool) {
	p.swallows(n, false, false, chooses)
}

// SwallowOfOne drops n replies to one call, the first that is chosen, and cuts the connections. A
// client that sends the call at most n times gives up.
func (p *Proxy) SwallowOfOne(n int, chooses func(call []string) bool) {
	p.swallows(n, false, true, chooses)
}

// SwallowSilently drops the replies like Swallow, but keeps the connection open without further
// data.
func (p *Proxy) SwallowSilently(n int, chooses func(call []string) bool) {
	p.swallows(n, true, false, chooses)
}

func (p *Proxy) swallows(n int, silent, same bool, chooses func(call []string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow, p.silent, p.same, p.chosen, p.chooses, p.gone = n, silent, same, nil, chooses, 0
}

// Swallowed returns how many replies were dropped since the last Swallow.
func (p *Proxy) Swallowed() int { return p.read(&p.gone) }

// Calls returns how many calls were received from clients.
func (p *Proxy) Calls() int { return p.read(&p.calls) }

// Held returns how many calls and replies were received during Stall.
func (p *Proxy) Held() int { return p.read(&p.held) }

// Missed returns how many connections failed because there was no server.
func (p *Proxy) Missed() int { return p.read(&p.missed) }

func (p *Proxy) read(count *int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *count
}

// Script returns a function that chooses the calls of a script.
func Script(name string) func(call []string) bool {
	sha := queue.ScriptSHA(queue.Scripts()[name])
	return func(call []string) bool {
		return len(call) > 2 && strings.EqualFold(call[0], "evalsha") && call[1] == sha
	}
}

// swallowsReplyTo returns whether to drop the reply to a call, and counts it.
func (p *Proxy) swallowsReplyTo(call []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.swallow == 0 || !p.chooses(call) {
		return false
	}
	if p.same {
		if p.chosen == nil {
			p.chosen = call
		}
		if !slices.Equal(p.chosen, call) {
			return false
		}
	}
	p.swallow--
	return true
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuses := p.refuses
		p.mu.Unlock()
		if refuses {
			_ = in.Close()
			continue
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			p.mu.Lock()
			p.missed++
			p.mu.Unlock()
			continue
		}
		c := &proxied{proxy: p, in: in, out: out, fates: make(chan bool, 1<<16), ended: make(chan struct{})}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.wg.Go(func() {
			c.run()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, c)
		})
	}
}

// losesSilently counts a dropped reply, and returns whether its connection stays open.
func (p *Proxy) losesSilently() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone++
	return p.silent
}

// pass waits for the delay of the network. It returns false if the connection was cut meanwhile.
func (c *proxied) pass(arrived time.Time) bool {
	c.proxy.mu.Lock()
	flows, delay := c.proxy.flows, c.proxy.delay
	select {
	case <-flows:
	default:
		c.proxy.held++
	}
	c.proxy.mu.Unlock()
	select {
	case <-flows:
	case <-c.ended:
		return false
	}
	if wait := delay - time.Since(arrived); delay > 0 && wait > 0 {
		select {
		case <-time.After(wait):
		case <-c.ended:
			return false
		}
	}
	return true
}
