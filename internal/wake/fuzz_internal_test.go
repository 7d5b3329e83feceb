package wake

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Anybody may publish on a mailbox's channel.
func FuzzWakeUps(f *testing.F) {
	for _, payload := range []string{"", "*", "* ", "* channel", "1", "1 500", "1  x", "2", " 1", "**", "1\n"} {
		f.Add(payload)
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	f.Cleanup(func() { _ = client.Close() })
	closed, stop := context.WithCancel(context.Background())
	stop()
	f.Fuzz(func(t *testing.T, payload string) {
		var woken []string
		m := &Mailbox{client: servers.MustClient(client), running: closed, receivers: map[string]*Receiver{"1": {wake: func(argument string, looked func()) {
			woken = append(woken, argument)
			if looked != nil {
				looked()
			}
		}}}}
		m.deliver(payload)
		m.serving.Wait()
		var want []string
		switch receiver, argument, _ := strings.Cut(payload, " "); receiver {
		case "1":
			want = []string{argument}
		case "*":
			want = []string{""}
		}
		if !slices.Equal(woken, want) {
			t.Errorf("%q wakes with %q", payload, woken)
		}
	})
}

func FuzzWaits(f *testing.F) {
	for _, argument := range []string{"", "21", "21.305", "0", "-1", "0.0004", "1e300", "nan", "inf", "21 5", "0x1p4"} {
		f.Add(argument)
	}
	f.Fuzz(func(t *testing.T, argument string) {
		wait := ReadWait(argument)
		if wait < 0 || wait > longestWait*time.Millisecond {
			t.Errorf("%q is read as %v", argument, wait)
		}
		// Decades are precise to less than a microsecond.
		if ms, err := strconv.ParseUint(argument, 10, 40); err == nil && (wait-time.Duration(ms)*time.Millisecond).Abs() >= time.Microsecond {
			t.Errorf("%q is read as %v", argument, wait)
		}
	})
}
