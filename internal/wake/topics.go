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
	channel := queue.NewTopics(prefix, client.Database())
	refused := func(err error) { read(fmt.Errorf("%w: %w", ErrNotHeard, err)) }
	var incoming <-chan any
	if client.Cluster() {
		l := &line{client: client, key: queue.Registry(prefix), channel: channel, rule: queue.TopicsRule(prefix)}
		incoming = l.listen(ctx)
	} else {
		pubsub, err := subscribe(ctx, client, nil, channel, queue.TopicsRule(prefix))
		if pubsub == nil || errors.Is(err, refusal.ErrForbidden) {
			refused(err)
		}
		listener := newListener(client, channel, true)
		defer listener.end()
		incoming = listener.listen(ctx, pubsub)
	}
	denied := false // which was said
	timer := time.NewTimer(0)
	defer timer.Stop()
	known := map[string]bool{}
	news := announcements{client: client, prefix: prefix, names: map[string]bool{}, checked: make(chan checked, 1)}
	entering, ended := false, make(chan entered, 1) // of the registry's losses; one try is under way at a time
	defer func() {                                  // go-redis does not heed the context while it waits for an answer
		patience, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if news.checking {
			wait(patience, news.checked)
		}
		if entering {
			wait(patience, ended)
		}
	}()
	look := func() {
		timer.Reset(rescan)
		news.lost = false
		missing := maps.Clone(known)
		err := queue.Topics(ctx, client, prefix, func(topic string) {
			delete(missing, topic)
			known[topic] = true
			found(topic, false)
		})
		switch {
		case err != nil && !errors.Is(err, refusal.ErrForbidden):
			timer.Reset(time.Second)
		case err == nil && entering:
			return // read is called after that try
		case err == nil && len(missing) > 0:
			entering = true
			go func() { ended <- enterAgain(ctx, client, prefix, missing) }()
			return
		}
		if ctx.Err() == nil {
			read(err)
		}
	}
	for {
		news.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			look()
		case result := <-news.checked:
			news.checking = false
			for _, topic := range result.listed {
				known[topic] = true
				found(topic, true)
			}
			if result.err != nil && news.lose() {
				timer.Reset(time.Second)
			}
		case result := <-ended:
			entering = false
			for _, topic := range result.gone {
				delete(known, topic)
			}
			if ctx.Err() == nil {
				read(result.err)
			}
		case event, open := <-incoming:
			switch event := event.(type) {
			case connected:
				if is := errors.Is(event.err, refusal.ErrForbidden); is && !denied {
					denied = true
					refused(event.err)
				}
				if event.err == nil {
					denied = false
					look()
				}
			case *redis.Subscription:
				look()
			case *redis.Message:
				if !news.add(event.Payload) && news.lose() {
					timer.Reset(time.Second)
				}
			}
			if !open { // the client was closed; the timer reports it
				incoming = nil
			}
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
