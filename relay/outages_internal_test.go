package relay

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
)

// lines is a logger that keeps its messages.
type lines struct {
	watermill.NopLogger
	mu   sync.Mutex
	said []string
}

func (l *lines) Error(msg string, _ error, _ watermill.LogFields) { l.say(msg) }
func (l *lines) Info(msg string, _ watermill.LogFields)           { l.say(msg) }

func (l *lines) say(msg string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, msg)
}

func (l *lines) all() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said
}

const began, ended = "The destination fails to take messages, trying again", "The destination takes messages again"

func TestDestinationThatFailsForSomeMessagesIsOneOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l lines
		o, s := &outages{logger: &l}, stop{stopping: t.Context()}
		o.sent(s, "orders")
		time.Sleep(calm)
		for range 1000 {
			o.failed("orders", errors.New("down"))
			o.failed("orders", errors.New("down"))
			o.sent(s, "orders")
			o.sent(s, "orders")
			time.Sleep(calm - 1)
		}
		require.Equal(t, []string{began}, l.all())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{began, ended}, l.all(), "nothing has failed for a while")
		o.failed("orders", errors.New("down"))
		time.Sleep(time.Hour)
		require.Equal(t, []string{began, ended, began}, l.all(), "nothing has gone out")
	})
}

func TestRelayLogsNothingAfterItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l lines
		stopping, stops := context.WithCancel(t.Context())
		o := &outages{logger: &l}
		o.failed("orders", errors.New("down"))
		o.sent(stop{stopping: stopping}, "orders")
		stops()
		time.Sleep(time.Hour)
		require.Equal(t, []string{began}, l.all())
		o.sent(stop{stopping: t.Context()}, "orders")
		time.Sleep(time.Hour)
		require.Equal(t, []string{began, ended}, l.all(), "another Run goes on")
	})
}
