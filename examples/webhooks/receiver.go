package main

import (
	"crypto/hmac"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// receiver is the customer's web server.
type receiver struct {
	url      string
	key      []byte
	server   *httptest.Server
	timeline example.Timeline
	done     func() // called when every reminder was taken or refused

	mu       sync.Mutex
	requests int
	forged   int
	tries    map[string]int  // by webhook-id
	taken    map[string]bool // by webhook-id
	refused  map[string]bool // by webhook-id
}

// startReceiver starts a receiver on a port of this machine.
func startReceiver(key []byte, done func()) *receiver {
	r := &receiver{
		key: key, timeline: example.NewTimeline(), done: done,
		tries: map[string]int{}, taken: map[string]bool{}, refused: map[string]bool{},
	}
	r.server = httptest.NewServer(http.HandlerFunc(r.receive))
	r.url = r.server.URL
	return r
}

func (r *receiver) close() { r.server.Close() }

// receive answers a request. Only the status counts.
func (r *receiver) receive(w http.ResponseWriter, request *http.Request) {
	payload, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 1<<20))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isGenuine(request, payload) {
		r.forged++
		r.timeline.Printf("%s  401, its signature is not ours", payload)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.requests++
	id := request.Header.Get("webhook-id")
	r.tries[id]++
	status := r.answer(id, string(payload))
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	r.timeline.Printf("%s  %d, try %d", payload, status, r.tries[id])
	w.WriteHeader(status)
	if len(r.taken)+len(r.refused) == reminders {
		r.done()
	}
}

// isGenuine checks the signature, and that the request is not an old one that somebody sends again.
func (r *receiver) isGenuine(request *http.Request, payload []byte) bool {
	id, at := request.Header.Get("webhook-id"), request.Header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	return hmac.Equal([]byte(sign(r.key, id, at, payload)), []byte(request.Header.Get("webhook-signature")))
}

// answer returns the status for a reminder. A reminder that comes again after it was taken has no
// effect, and is a success.
func (r *receiver) answer(id, payload string) int {
	switch {
	case payload == `{"reminder":3}` && r.tries[id] == 1:
		return http.StatusServiceUnavailable
	case payload == `{"reminder":5}` && r.tries[id] == 1:
		return http.StatusTooManyRequests
	case payload == `{"reminder":7}`:
		r.refused[id] = true
		return http.StatusGone
	}
	r.taken[id] = true
	return http.StatusNoContent
}

func (r *receiver) summary() {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf("\nThe customer took %d of %d reminders and refused %d, in %d requests; forged and turned away: %d.\n",
		len(r.taken), reminders, len(r.refused), r.requests, r.forged)
}
