package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestActsAreKeptNewestFirst(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		for i := range 5 {
			require.NoError(t, s.admin.Record(ctx, admin.Act{By: "ann", Action: fmt.Sprint("act ", i), Topic: topic, Group: "g", MessageID: "1", Schedule: "s",
				Detail: strings.Repeat("ä", 600), Error: "\x00failed"}))
		}
		acts, next, err := s.admin.Acts(ctx, "", 3)
		require.NoError(t, err)
		require.Len(t, acts, 3)
		require.WithinDuration(t, time.Now(), acts[0].At, time.Minute)
		acts[0].At = time.Time{}
		require.Equal(t, admin.Act{By: "ann", Action: "act 4", Topic: topic, Group: "g", MessageID: "1", Schedule: "s",
			Detail: strings.Repeat("ä", 512), Error: "\x00failed"}, acts[0])
		acts, next, err = s.admin.Acts(ctx, next, 3)
		require.NoError(t, err)
		require.Empty(t, next)
		require.Len(t, acts, 2)
		require.Equal(t, "act 0", acts[1].Action)

		require.ErrorIs(t, s.admin.Record(ctx, admin.Act{Action: "pause"}), admin.ErrInvalidArgument)
		for _, wrong := range []string{"+", "1", "1-", "-1", "1-1-1", "18446744073709551616-1", "1-18446744073709551616"} {
			_, _, err = s.admin.Acts(ctx, wrong, 0)
			require.ErrorIs(t, err, admin.ErrInvalidArgument, wrong)
		}
	})
}

func TestAuditLogHasALimit(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		pipe := s.Client.Pipeline()
		for range 12_000 {
			pipe.Do(ctx, "XADD", queue.AuditLog(s.Prefix), "*", "by", "ann")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		require.NoError(t, s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause"}))
		require.Less(t, s.Client.XLen(ctx, queue.AuditLog(s.Prefix)).Val(), int64(10_200))
	})
}

// An act on a topic does not look like one on another topic, whose name it has but for some bytes.
func TestActsNameNoOtherTopic(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		long := "x" + strings.Repeat("ä", 600)
		require.NoError(t, s.admin.Record(ctx, admin.Act{By: "\xff", Action: "purge", Topic: "ord\xffers", Detail: long, Error: strings.Repeat("\x80", 2000)}))
		acts, _, err := s.admin.Acts(ctx, "", 0)
		require.NoError(t, err)
		require.Equal(t, "ord\ufffders", acts[0].Topic)
		require.Equal(t, "\ufffd", acts[0].By)
		require.Equal(t, long[:1023], acts[0].Detail)
		require.Equal(t, "\ufffd", acts[0].Error)
	})
}
