package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// Nil Topics are all topics. Empty Topics are none until Add: a program that adds topics itself,
// and has none yet, does not serve those of others.
func TestTopicsThatAreNilEmptyOrGiven(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		topics, want []string
	}{
		"nil":   {nil, []string{"added", "other", "third"}},
		"empty": {[]string{}, []string{"added"}},
		"given": {[]string{"other"}, []string{"added", "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redisdelaytest.Start(t)
			p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
			require.NoError(t, err)
			defer p.Close()
			for _, topic := range []string{"other", "third", "added"} {
				msg := message.NewMessage("", nil)
				redisdelay.DelayFor(msg, time.Hour)
				require.NoError(t, p.Publish(topic, msg))
			}
			topics := slices.Clone(c.topics)
			s, err := scheduler.New(scheduler.Config{Client: server.Client(), Topics: topics}, nil)
			require.NoError(t, err)
			clear(topics) // the slice is the caller's again
			ended := make(chan error, 1)
			go func() { ended <- s.Run(t.Context()) }()
			t.Cleanup(func() { require.NoError(t, <-ended) })

			// All topics are found without Add.
			if c.topics == nil {
				require.Eventually(t, func() bool { return len(s.Served()) == len(c.want) }, 10*time.Second, time.Millisecond)
			}
			s.Add("added")
			scheduled := func() bool {
				stats, err := server.Admin().Stats(t.Context(), "added")
				return err == nil && stats.Scheduled
			}
			require.Eventually(t, scheduled, 10*time.Second, time.Millisecond)
			require.Equal(t, c.want, s.Served())
		})
	}
}
