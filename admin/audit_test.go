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

// A look for what was done since a time reads no older acts.
func TestActsAreFoundByPersonTopicAndTime(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		at := func(seconds int) time.Time { return time.UnixMilli(int64(1_000_000 + 1000*seconds)) }
		for i := range 2500 {
			id := fmt.Sprintf("%d-1", at(i).UnixMilli())
			require.NoError(t, s.Client.Do(ctx, "XADD", queue.AuditLog(s.Prefix), id, "by", []string{"ann", "bob"}[i%2], "action", fmt.Sprint("act ", i), "topic", "orders").Err())
		}
		acts := func(f admin.ActFilter) (found []string, looked int) {
			for {
				page, err := s.admin.FindActs(ctx, f)
				require.NoError(t, err)
				for _, act := range page.Acts {
					found = append(found, act.Action)
				}
				looked += page.Looked
				if f.Cursor = page.Next; f.Cursor == "" {
					return found, looked
				}
			}
		}
		found, looked := acts(admin.ActFilter{Since: at(2497)})
		require.Equal(t, []string{"act 2499", "act 2498", "act 2497"}, found)
		require.Equal(t, 3, looked)
		found, _ = acts(admin.ActFilter{Since: at(10), Until: at(14), By: "ann"})
		require.Equal(t, []string{"act 12", "act 10"}, found)
		found, looked = acts(admin.ActFilter{By: "bob", Limit: 7})
		require.Len(t, found, 1250)
		require.Equal(t, 2500, looked)
		found, _ = acts(admin.ActFilter{Topic: "others"})
		require.Empty(t, found)
		found, _ = acts(admin.ActFilter{Until: time.UnixMilli(-5)})
		require.Empty(t, found)
	})
}

// An act has when the message was due, so an operator can go back.
func TestDueTextTellsWhenAMessageIsDue(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 10, 0, 0, 0, time.FixedZone("", 3600))
	require.Equal(t, "due was 2026-11-28T09:00:00Z", admin.Message{Places: []admin.Place{{State: admin.Waiting, At: at}}}.DueText())
	require.Equal(t, `due was 2026-11-28T09:00:00.5Z in group "a", 2026-11-28T09:00:00Z in group "b"`, admin.Message{Places: []admin.Place{
		{State: admin.Retrying, Group: "a", At: at.Add(500 * time.Millisecond)}, {State: admin.Retrying, Group: "b", At: at}, {State: admin.Dead, Group: "c", At: at},
	}}.DueText())
	require.Empty(t, admin.Message{Places: []admin.Place{{State: admin.Ready}, {State: admin.InHand, At: at}}}.DueText())
	require.Empty(t, admin.Message{}.DueText())
}
