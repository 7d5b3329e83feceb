package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// wrongType tells whether a server's error says that a key has a wrong type. In a script of Redis
// 6.2 the error begins otherwise.
func wrongType(err error) bool {
	var server redis.Error
	return errors.As(err, &server) && strings.Contains(server.Error(), "WRONGTYPE Operation")
}

// NameWrongType adds the first key of a wrong type to an error of the server, which names none. It
// returns the error as it is if that is about something else, if the user may not ask, or if the
// key is gone.
func NameWrongType(ctx context.Context, client *servers.Client, keys []string, err error) error {
	if !wrongType(err) {
		return err
	}
	for some := range slices.Chunk(keys, 500) {
		found, asked := servers.AskKey(ctx, client, some[0], func(ctx context.Context, c redis.UniversalClient) ([]*redis.StatusCmd, error) {
			found := make([]*redis.StatusCmd, len(some))
			p := c.Pipeline()
			for i, key := range some {
				found[i] = p.Type(ctx, key)
			}
			_, err := p.Exec(ctx)
			return found, err
		})
		if asked != nil {
			return err
		}
		for i, key := range some {
			want, _ := TypeOf(key)
			if is := found[i].Val(); is != want && is != "none" {
				return fmt.Errorf("the key %q is a %s, and has to be a %s: %w", key, is, want, err)
			}
		}
	}
	return err
}
