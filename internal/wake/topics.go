package wake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// rescan is the interval at which WatchTopics reads the registry again, in case an announcement was
// lost.
const rescan = 30 * time.Second

// WatchTopics calls found for every topic of the registry, and for each topic that enters it later,
// until the context ends. It may call found more than once for a topic. The argument announced
// tells whether the topic was announced just now. Anyone may announce any name, so WatchTopics
// ignores names that are not in the registry. If the registry has lost a topic that exists and that
// WatchTopics knows, it enters the topic again.
//
// It calls read after each try to read the registry, with the error or nil. After an error it tries
// again within a second, or, where the user may not read, at the next rescan. If topics are
// missing, it calls read when it has tried to enter them again, with ErrNotEntered after a failure.
// A node of a Cluster that hangs delays that, but no announcement. It also calls read with
// ErrNotHeard if it may not listen for announcements.
func WatchTopics(ctx context.Context, client *servers.Client, prefix string, found func(topic string, announced bool), read func(error)) {
	w := &watch{
		ctx: ctx, client: client, prefix: prefix, found: found, read: read,
		timer: time.NewTimer(0), known: map[string]bool{}, ended: make(chan entered, 1),
		news: announcements{client: client, prefix: prefix, names: map[string]bool{}, checked: make(chan checked, 1)},
	}
	incoming, end := w.listen()
	defer end()
	defer w.timer.Stop()
	defer w.awaitCalls()
	for {
		w.news.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.timer.C:
			w.look()
		case result := <-w.news.checked:
			w.announced(result)
		case result := <-w.ended:
			w.entered(result)
		case event, open := <-incoming:
			w.heard(event)
			if !open { // the client was closed; the timer reports it
				incoming = nil
			}
		}
	}
}

// watch is one WatchTopics. Only its goroutine uses the fields.
type watch struct {
	ctx    context.Context
	client *servers.Client
	prefix string
	found  func(topic string, announced bool)
	read   func(error)

	timer    *time.Timer // to read the registry
	known    map[string]bool
	news     announcements
	denied   bool         // it may not listen, which was said
	entering bool         // a try to enter what the registry has lost is under way
	ended    chan entered // holds the result of the try
}

// listen returns what is announced, and a function that ends that.
func (w *watch) listen() (incoming <-chan any, end func()) {
	channel, rule := queue.NewTopics(w.prefix, w.client.Database()), queue.TopicsRule(w.prefix)
	if w.client.Cluster() {
		l := &line{client: w.client, key: queue.Registry(w.prefix), channel: channel, rule: rule}
		return l.listen(w.ctx), func() {}
	}
	pubsub, err := subscribe(w.ctx, w.client, nil, channel, rule)
	if pubsub == nil || errors.Is(err, refusal.ErrForbidden) {
		w.refused(err)
	}
	listener := newListener(w.client, channel)
	return listener.listen(w.ctx, pubsub), listener.end
}

// refused tells that announcements are not heard.
func (w *watch) refused(err error) { w.read(fmt.Errorf("%w: %w", ErrNotHeard, err)) }

// awaitCalls waits for calls under way, a second at most: go-redis does not heed the context while
// it waits for an answer.
func (w *watch) awaitCalls() {
	patience, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if w.news.checking {
		wait(patience, w.news.checked)
	}
	if w.entering {
		wait(patience, w.ended)
	}
}

// look reads the registry. If topics are missing there, it begins to enter them again.
func (w *watch) look() {
	w.timer.Reset(rescan)
	w.news.lost = false
	missing := maps.Clone(w.known)
	err := queue.Topics(w.ctx, w.client, w.prefix, func(topic string) {
		delete(missing, topic)
		w.known[topic] = true
		w.found(topic, false)
	})
	switch {
	case err != nil && !errors.Is(err, refusal.ErrForbidden):
		w.timer.Reset(time.Second)
	case err == nil && w.entering:
		return // read is called after that try
	case err == nil && len(missing) > 0:
		w.entering = true
		go func() { w.ended <- enterAgain(w.ctx, w.client, w.prefix, missing) }()
		return
	}
	if w.ctx.Err() == nil {
		w.read(err)
	}
}

// announced takes in which announced names are in the registry.
func (w *watch) announced(result checked) {
	w.news.checking = false
	for _, topic := range result.listed {
		w.known[topic] = true
		w.found(topic, true)
	}
	if result.err != nil {
		w.lose()
	}
}

// lose has the registry read soon, because a name is not checked.
func (w *watch) lose() {
	if w.news.lose() {
		w.timer.Reset(time.Second)
	}
}

// entered takes in what became of the topics that were missing.
func (w *watch) entered(result entered) {
	w.entering = false
	for _, topic := range result.gone {
		delete(w.known, topic)
	}
	if w.ctx.Err() == nil {
		w.read(result.err)
	}
}

// heard takes in an event of the channel of new topics.
func (w *watch) heard(event any) {
	switch event := event.(type) {
	case connected:
		if is := errors.Is(event.err, refusal.ErrForbidden); is && !w.denied {
			w.denied = true
			w.refused(event.err)
		}
		if event.err == nil {
			w.denied = false
			w.look()
		}
	case *redis.Subscription:
		w.look()
	case *redis.Message:
		if !w.news.add(event.Payload) {
			w.lose()
		}
	}
}

// announcements are the names that were announced. One check of some of them is under way at a
// time, so that a flood costs no more. Only the goroutine of WatchTopics uses the fields.
type announcements struct {
	client *servers.Client
	prefix string

	names    map[string]bool // not checked yet
	checking bool
	checked  chan checked // holds the result of the check
	lost     bool         // the registry is read soon, because names were not checked
}

// checked is the result of a check: the names that are in the registry.
type checked struct {
	listed []string
	err    error
}

const (
	mostAnnounced = 1000 // names that wait for a check
	checkedAtOnce = 100
)

// add adds a name. It returns false if there is no room for the name.
func (a *announcements) add(name string) bool {
	if queue.CheckTopic(name) != nil || a.names[name] {
		return true
	}
	if len(a.names) >= mostAnnounced {
		return false
	}
	a.names[name] = true
	return true
}

// lose notes that a name is not checked. It returns true if the registry has to be read for that.
func (a *announcements) lose() bool {
	first := !a.lost
	a.lost = true
	return first
}

// check begins to check some names, unless a check is under way.
func (a *announcements) check(ctx context.Context) {
	if a.checking || len(a.names) == 0 {
		return
	}
	a.checking = true
	var some []string
	for name := range a.names {
		if len(some) == checkedAtOnce {
			break
		}
		some = append(some, name)
		delete(a.names, name)
	}
	go func() {
		listed, err := queue.ListedOf(ctx, a.client, a.prefix, some)
		a.checked <- checked{listed, err}
	}()
}

// wait receives a value, unless ctx ends before.
func wait[T any](ctx context.Context, from <-chan T) {
	select {
	case <-from:
	case <-ctx.Done():
	}
}

// ErrNotHeard means that WatchTopics receives no announcements, and finds new topics only when it
// reads the registry again.
var ErrNotHeard = errors.New("new topics are not heard of")

// RegistryNews chooses the log lines about the registry, so that an outage is logged once and not
// every second. The zero value is ready to use.
type RegistryNews struct{ before error }

// Of returns the log line for an argument of WatchTopics's read, or "" if it is no news.
func (n *RegistryNews) Of(err error) string {
	if errors.Is(err, ErrNotHeard) { // the registry may still be read
		return "Cannot listen for new topics, looking for them twice a minute"
	}
	before := n.before
	n.before = err
	switch {
	case err == nil && before == nil, err != nil && before != nil && sameTrouble(err, before):
		return ""
	case err == nil:
		return "The registry of topics is read again"
	case errors.Is(err, ErrNotEntered):
		return "Cannot mend the registry of topics, trying again"
	default:
		return "Cannot read the registry of topics, trying again"
	}
}

// sameTrouble tells whether two errors in a row are one outage.
func sameTrouble(err, before error) bool {
	if err.Error() == before.Error() {
		return true
	}
	return servers.Unreachable(err) && servers.Unreachable(before) && errors.Is(err, ErrNotEntered) == errors.Is(before, ErrNotEntered)
}

// ErrNotEntered means that a topic is missing in the registry and could not be entered again yet.
var ErrNotEntered = errors.New("a topic is missing in the registry")

// entered is the result of enterAgain.
type entered struct {
	gone []string // topics that do not exist
	err  error    // the first; it wraps ErrNotEntered
}

// enterAgain enters the missing topics that exist in the registry. After an error it leaves out
// other topics of that node. The next rescan tries them again.
func enterAgain(ctx context.Context, client *servers.Client, prefix string, missing map[string]bool) (e entered) {
	failed := map[string]bool{} // nodes
	for name := range missing {
		topic := queue.NewTopic(client, prefix, name)
		node, err := topic.Master(ctx)
		if failed[node] {
			continue
		}
		there := false
		if err == nil {
			there, err = topic.Relist(ctx)
		}
		switch {
		case err != nil:
			failed[node] = true
			e.err = cmp.Or(e.err, fmt.Errorf("%w: %q: %w", ErrNotEntered, name, err))
		case !there:
			e.gone = append(e.gone, name)
		}
	}
	return e
}
