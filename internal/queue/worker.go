package queue

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Worker is a subscription, as it shows itself to operators.
type Worker struct {
	Subscription string // the name of its main lane
	Host         string
	PID          int
	Program      string
	Version      string
	Address      string // where it is woken

	Since, Seen, Until time.Time // it was first and last seen; when its note is no longer valid
	Heard              bool      // the server heard its process when it was last seen, and can tell when that is gone
	Gone               time.Time // since when its process is gone; zero: it is not, as far as is known
}

// secondLane ends the name of a subscription's second lane.
const secondLane = "+"

// SecondLane returns the name of the second lane of a subscription.
func SecondLane(subscription string) string { return subscription + secondLane }

// SubscriptionOf returns the subscription that has a lease, by the lease's token.
func SubscriptionOf(token string) string {
	lane, _, _ := strings.Cut(token, ":")
	return strings.TrimSuffix(lane, secondLane)
}

// Active is what is known about the active subscription of a group with SingleActive.
type Active struct {
	Subscription string    // "": none is active
	Epoch        int64     // of the active subscription, or of the last one
	Ends         time.Time // when another takes its place if it does not claim; zero: it need not claim
}

// ReadActive reads an entry of the hash active, "" for none.
func ReadActive(text string) Active {
	part := append(strings.Fields(text), "", "", "")
	a := Active{Subscription: strings.TrimPrefix(part[0], "-")}
	a.Epoch, _ = strconv.ParseInt(part[1], 10, 64)
	if ends := Instant(part[2]); ends.UnixMilli() > 0 {
		a.Ends = ends
	}
	return a
}

const (
	// SignInterval is how often a subscription shows that it lives at most.
	SignInterval = 30 * time.Second
	// SignValid is for how long a sign of life is valid. A subscription shows itself with a claim
	// or an extension that goes anyhow. With free hands, it claims more often than that.
	SignValid = 90 * time.Second
)

// thisProcess describes this process.
var thisProcess = sync.OnceValue(func() Worker {
	w := Worker{PID: os.Getpid(), Program: filepath.Base(os.Args[0])}
	w.Host, _ = os.Hostname()
	if info, ok := debug.ReadBuildInfo(); ok {
		w.Version = info.Main.Version
	}
	return w
})

// Sign returns the text by which a subscription of this process shows that it lives. lease is its
// LeaseDuration: the text is valid until no lease of now can last.
func Sign(address string, lease time.Duration) string {
	w := thisProcess()
	valid := max(SignValid, lease+2*SignInterval)
	return fmt.Sprintf("%s %d %s %s %s %s", millis(valid), w.PID, word(w.Host), word(w.Program), word(w.Version), address)
}

// word encodes a text as one word, "-" for none.
func word(text string) string {
	if text == "" {
		return "-"
	}
	return EncodeName(text[:min(len(text), 255)])
}

// unword is the reverse of word.
func unword(text string) string {
	if text == "-" {
		return ""
	}
	return DecodeName(text)
}

// ReadWorker reads a worker as it is stored. Missing parts are zero.
func ReadWorker(subscription, text string) Worker {
	const parts = 10
	part := strings.SplitN(text, " ", parts)
	part = append(part, make([]string, parts-len(part))...)
	w := Worker{
		Subscription: subscription, Host: unword(part[6]), Program: unword(part[7]), Version: unword(part[8]), Address: part[9],
		Since: Instant(part[0]), Seen: Instant(part[1]), Until: Instant(part[2]), Heard: part[3] != "" && part[3] != "-",
	}
	if gone := Instant(part[4]); gone.UnixMilli() > 0 {
		w.Gone = gone
	}
	w.PID, _ = strconv.Atoi(part[5])
	return w
}

// SignOff removes a subscription that has ended from the workers of its group.
func (g *Group) SignOff(ctx context.Context, subscription string) error {
	workers := g.topic.keys.Workers(g.Name)
	_, err := servers.AskKey(ctx, g.topic.client, workers, func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.HDel(ctx, workers, subscription).Result()
	})
	return err
}
