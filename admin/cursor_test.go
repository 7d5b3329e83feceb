package admin_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Topics accepts only cursors that are numbers, and passes them to and from Redis unchanged.
func FuzzCursorsOfTopics(f *testing.F) {
	for _, cursor := range []string{"", "0", "17", "18446744073709551615", "18446744073709551616", "-1", "+1", "01", "1e3", "0x1", "x", " 1"} {
		f.Add(cursor)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer func() { _ = client.Close() }()
		var asked uint64 // of a server that has more topics after each cursor
		client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, _ func() error) error {
			if scan, ok := calls[0].(*redis.ScanCmd); ok {
				asked, _ = scan.Args()[2].(uint64)
				scan.SetVal([]string{"topic"}, asked)
			}
			return nil
		}))
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
		case err != nil || asked != want:
			t.Errorf("%q asks for %d, and %v", cursor, asked, err)
		case want == 0 && next != "", want != 0 && next != strconv.FormatUint(want, 10):
			t.Errorf("%q goes on with %q", cursor, next)
		}
	})
}
