package admin_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// listing is a client whose server always has more topics after the requested cursor.
type listing struct{ asked uint64 }

func (*listing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*listing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *listing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if scan, ok := cmd.(*redis.ScanCmd); ok {
			l.asked, _ = scan.Args()[2].(uint64)
			scan.SetVal([]string{"topic"}, l.asked)
		}
		return nil
	}
}

// Topics accepts only cursors that are numbers, and passes them to and from Redis unchanged.
func FuzzCursorsOfTopics(f *testing.F) {
	for _, cursor := range []string{"", "0", "17", "18446744073709551615", "18446744073709551616", "-1", "+1", "01", "1e3", "0x1", "x", " 1"} {
		f.Add(cursor)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		client, server := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), &listing{}
		defer func() { _ = client.Close() }()
		client.AddHook(server)
		a, err := admin.New(admin.Config{Client: client})
		if err != nil {
			t.Fatal(err)
		}
		_, next, err := a.Topics(t.Context(), cursor, 1)
		want, invalid := strconv.ParseUint(cursor, 10, 64)
		switch {
		case cursor != "" && invalid != nil:
			if !errors.Is(err, admin.ErrInvalidArgument) {
				t.Errorf("%q: %v does not say that it is invalid", cursor, err)
			}
		case err != nil || server.asked != want:
			t.Errorf("%q asks for %d, and %v", cursor, server.asked, err)
		case want == 0 && next != "", want != 0 && next != strconv.FormatUint(want, 10):
			t.Errorf("%q goes on with %q", cursor, next)
		}
	})
}
