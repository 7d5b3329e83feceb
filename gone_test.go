package redisdelay_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// withoutConnections subscribes, takes a message, and cuts all connections, as if the process died.
func withoutConnections(t *testing.T, s redistest.Server, change ...func(*redisdelay.SubscriberConfig)) {
	t.Helper()
	dies := s
	dies.Client = another(t, s)
	has := subscribe(t, dies, "t", change...)
	publish(t, newPublisher(t, s), "t", "x")
	receive(t, has)
	require.NoError(t, dies.Client.Close())
}

func TestADeadProcessIsLoggedCountedAndShown(t *testing.T) {
	s, _ := private(t)
	withoutConnections(t, s)
	book := &logbook{}
	lives := subscribeTo(t, newLoggingSubscriber(t, s, book.logger()), "t")
	again := receive(t, lives)
	require.Equal(t, "x", string(again.Payload))

	gone := "Processes are gone: what they had in hand is delivered again"
	eventually(t, func() bool { return len(book.said(gone)) > 0 }, "it is logged, perhaps after the delivery")
	said := book.said(gone)
	require.Len(t, said, 1)
	require.Equal(t, "t", said[0].fields["topic"])
	require.Equal(t, 1, said[0].fields["messages"])
	require.Len(t, said[0].fields["processes"], 1)

	a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	stats, err := a.Stats(ctx, "t")
	require.NoError(t, err)
	require.Equal(t, 1, stats.Groups[0].Counters.Disowned)
	workers, err := a.Workers(ctx, "t")
	require.NoError(t, err)
	require.Len(t, workers, 1, "one that is gone and has nothing in hand is not there")
	require.Equal(t, os.Getpid(), workers[0].PID)
	require.Zero(t, workers[0].GoneSince)
	again.Ack()
}

func TestAUserWhoMayNotAskWhoListensIsToldOnce(t *testing.T) {
	s, in := private(t)
	require.NoError(t, s.Client.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~*", "&*", "+@all", "-pubsub").Err())
	user := s
	user.Client = redis.NewClient(&redis.Options{Addr: in.Addr(), Username: "user", Password: "secret"})
	t.Cleanup(func() { _ = user.Client.Close() })
	book := &logbook{}
	messages := subscribeTo(t, newLoggingSubscriber(t, user, book.logger(), inFlight(2)), "t")
	publish(t, newPublisher(t, s), "t", "1", "2")
	first, second := receive(t, messages), receive(t, messages)
	mute := "Redis does not say which processes listen: what a killed process had in hand comes back when its leases end"
	eventually(t, func() bool { return len(book.said(mute)) == 1 }, "it is logged")
	require.Equal(t, "+info +pubsub|numsub +pubsub|shardnumsub", book.said(mute)[0].fields["permissions"])
	require.True(t, first.Ack())
	require.True(t, second.Ack())
	require.Empty(t, book.find("error", "redisdelay.scheduler"))
	require.NotErrorIs(t, context.Cause(first.Context()), redisdelay.ErrLeaseLost)
}
