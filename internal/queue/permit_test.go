package queue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

var allWork = slices.Concat(queue.PublishingStreams, queue.SchedulingStreams, queue.Publishing, queue.Consuming)

func TestOnlyThoseOfStreamsTakeTheCommandsOfStreams(t *testing.T) {
	t.Parallel()
	ofStreams := func(work queue.Work) (commands []string) {
		for _, command := range work.Commands() {
			if strings.HasPrefix(command, "X") {
				commands = append(commands, command)
			}
		}
		return commands
	}
	require.Equal(t, []string{"XADD", "XDEL", "XLEN", "XTRIM"}, ofStreams(queue.PublishingStreams))
	require.Equal(t, []string{"XADD", "XLEN", "XTRIM"}, ofStreams(queue.SchedulingStreams))
	require.Empty(t, ofStreams(queue.Publishing))
	require.Empty(t, ofStreams(queue.Consuming))
}

func TestPermitFindsNothingWhereAllIsAllowedAndChangesNothing(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a")
		w.publishNow("x")
		w.unchanged(func() {
			evicts, err := w.topic.Permit(ctx, allWork)
			require.NoError(t, err)
			require.Empty(t, evicts)
			_, err = w.topic.Permit(ctx, allWork)
			require.NoError(t, err)
		})
	})
}

func TestPermitNamesEachCommandThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	w := newWorld(t, redistest.Server{Client: admin, Prefix: "own"}, "topic", "a")
	w.publishNow("x")
	commands := allWork.Commands()
	require.Greater(t, len(commands), 20)
	for _, command := range commands {
		name := strings.ToLower(command)
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", name, "on", ">secret", "~own:*", "&own:*", "+@all", "-"+name).Err())
		user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: name, Password: "secret"})
		defer user.Close()
		w.unchanged(func() {
			_, err := queue.NewTopic(user, "own", "topic").Permit(ctx, allWork)
			if command == "HMGET" || command == "HKEYS" { // what open takes
				require.Error(t, err, command)
				return
			}
			require.ErrorIs(t, err, queue.ErrForbidden, command)
			require.ErrorContains(t, err, "allowed +"+name)
		})
	}
}

// Redis 7 gives a new user no channels. Who publishes messages then takes those who wait for them, and wakes nobody.
func TestPermitFindsThatChannelsAreNotAllowed(t *testing.T) {
	t.Parallel()
	admin := redistest.Start(t).Client(t)
	w := newWorld(t, redistest.Server{Client: admin, Prefix: "own"}, "topic", "a")
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~own:*", "resetchannels", "+@all").Err())
	user := redis.NewClient(&redis.Options{Addr: admin.(*redis.Client).Options().Addr, Username: "user", Password: "secret"})
	defer user.Close()
	for _, work := range []queue.Work{queue.Publishing, queue.PublishingStreams, queue.Scheduling, queue.SchedulingStreams, queue.Consuming} {
		w.unchanged(func() {
			_, err := queue.NewTopic(user, "own", "topic").Permit(ctx, work)
			require.ErrorIs(t, err, queue.ErrForbidden)
			require.ErrorContains(t, err, "own:mailbox:")
			require.Error(t, only(queue.NewTopic(user, "own", "new").Permit(ctx, work)))
		})
	}
}

func TestPermitTellsThatKeysMayBeEvicted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ limit, policy, want string }{
		{"0", "allkeys-lru", ""},
		{"100mb", "noeviction", ""},
		{"100mb", "allkeys-lru", "allkeys-lru"},
		{"100mb", "volatile-ttl", "volatile-ttl"},
	} {
		w := newWorld(t, redistest.Server{Client: redistest.Start(t, "--maxmemory", c.limit, "--maxmemory-policy", c.policy).Client(t), Prefix: "own"}, "topic")
		evicts, err := w.topic.Permit(ctx, allWork)
		require.NoError(t, err)
		require.Equal(t, c.want, evicts)
	}
}
