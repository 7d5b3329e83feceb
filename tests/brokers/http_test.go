package brokers

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	whttp "github.com/ThreeDotsLabs/watermill-http/v2/pkg/http"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// hookMaxMessage is the largest payload that the receiver takes.
const hookMaxMessage = 100_000

// httpBroker is a receiver of webhooks on net/http. A topic is a path.
var httpBroker = broker{
	start: func(t *testing.T) server { return startHooks(t) },
	newPublisher: func(addr string) (message.Publisher, error) {
		return whttp.NewPublisher(whttp.PublisherConfig{
			Client: &http.Client{
				Timeout: 10 * time.Second, // by default there is none
				// A redirect that is not followed would be taken for success.
				CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a redirect") },
			},
			MarshalMessageFunc: func(topic string, msg *message.Message) (*http.Request, error) {
				request, err := whttp.DefaultMarshalMessageFunc("http://"+addr+"/"+topic, msg)
				if err != nil {
					return nil, err
				}
				return request.WithContext(msg.Context()), nil // so that Publish ends when the relay does
			},
			DoNotLogResponseBodyOnServerError: true,
		}, nil)
	},
	newSubscriber: func(addr string) (message.Subscriber, error) {
		s, _ := hookServers.Load(addr)
		return &hookSubscriber{s.(*hookServer)}, nil
	},
	permanent: func(err error) bool { // the status is in the error's text only
		return errors.Is(err, whttp.ErrErrorResponse) && refusedForGood.MatchString(err.Error())
	},
	refused: map[string]refusal{
		"too large": {
			make: func(msg *message.Message) { msg.Payload = make([]byte, hookMaxMessage+1) },
			why:  "413 Request Entity Too Large",
		},
		"not understood": {
			make: func(msg *message.Message) { msg.Payload = []byte("not JSON") },
			why:  "422 Unprocessable Entity",
		},
	},
	addTopic: func(_ *testing.T, addr, topic string) {
		s, _ := hookServers.Load(addr)
		s.(*hookServer).add(topic)
	},
}

// refusedForGood matches the statuses that make a message dead, at the begin of a text or after
// those that wrap it.
var refusedForGood = regexp.MustCompile(`(^|: )(400|410|413|415|422) `)

var hookServers sync.Map // *hookServer by address

// hookServer answers a request when its consumer has acked the message.
type hookServer struct {
	gate *gate

	mu       sync.Mutex
	topics   map[string]chan *message.Message // nil for a topic without a consumer, whose messages are dropped
	busy     bool                             // all requests are throttled
	closed   bool                             // the consumer is
	ended    chan struct{}                    // closed when closed
	handling sync.WaitGroup                   // requests that may give a message to the consumer
}

func startHooks(t *testing.T) *hookServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &hookServer{gate: newGate(listener), topics: map[string]chan *message.Message{topic: nil}, ended: make(chan struct{})}
	web := &http.Server{Handler: s}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = web.Serve(s.gate)
	}()
	hookServers.Store(s.addr(), s)
	t.Cleanup(func() {
		hookServers.Delete(s.addr())
		_ = web.Close()
		<-ended
	})
	return s
}

func (s *hookServer) addr() string { return s.gate.Addr().String() }

// restart cuts all connections, and refuses new ones for a second.
func (s *hookServer) restart(*testing.T) {
	defer s.gate.refuse()()
	time.Sleep(time.Second) // the time that a restart takes
}

func (s *hookServer) stall(*testing.T) (resume func()) { return s.gate.stall() }

func (s *hookServer) throttle(*testing.T) (relent func()) {
	set := func(busy bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy = busy
	}
	set(true)
	return func() { set(false) }
}

func (s *hookServer) add(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics[topic] = nil
}

// consumer returns the channel for a topic. done must be called when nothing more goes there.
func (s *hookServer) consumer(topic string) (to chan *message.Message, status int, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to, there := s.topics[topic]
	switch {
	case s.busy:
		return nil, http.StatusTooManyRequests, nil
	case s.closed:
		return nil, http.StatusServiceUnavailable, nil
	case !there:
		return nil, http.StatusNotFound, nil
	}
	s.handling.Add(1)
	return to, http.StatusOK, s.handling.Done
}

func (s *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, status, done := s.consumer(strings.TrimPrefix(r.URL.Path, "/"))
	if status != http.StatusOK {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		return
	}
	defer done()
	msg, err := whttp.DefaultUnmarshalMessageFunc(topic, r)
	switch {
	case err != nil: // the connection was cut
	case len(msg.Payload) > hookMaxMessage:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	case string(msg.Payload) == "not JSON":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case to != nil && !s.handle(r.Context(), to, msg):
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// handle returns whether the consumer has acked the message.
func (s *hookServer) handle(ctx context.Context, to chan *message.Message, msg *message.Message) bool {
	select {
	case to <- msg:
	case <-ctx.Done():
		return false
	case <-s.ended:
		return false
	}
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return false
	case <-s.ended:
		return false
	}
}

// hookSubscriber is the consumer.
type hookSubscriber struct{ s *hookServer }

func (c *hookSubscriber) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	messages := make(chan *message.Message)
	c.s.topics[topic] = messages
	return messages, nil
}

func (c *hookSubscriber) Close() error {
	c.s.mu.Lock()
	if c.s.closed {
		c.s.mu.Unlock()
		return nil
	}
	c.s.closed = true
	close(c.s.ended)
	c.s.mu.Unlock()
	c.s.handling.Wait()
	for _, messages := range c.s.topics {
		if messages != nil {
			close(messages)
		}
	}
	return nil
}
