package wake

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// channelsOf returns the channels of addresses, and which of them are sharded. An empty address has
// none.
func channelsOf(addresses []string) (channels, sharded []string) {
	for _, address := range addresses {
		if end := strings.LastIndexByte(address, '|'); end >= 0 {
			if channel := address[:end]; servers.Sharded(channel) {
				sharded = append(sharded, channel)
			} else {
				channels = append(channels, channel)
			}
		}
	}
	return channels, sharded
}

// withReceivers returns those of the channels that have receivers on the server that c asks.
func withReceivers(ctx context.Context, c redis.UniversalClient, channels, sharded []string) (map[string]bool, error) {
	found := map[string]bool{}
	for _, ask := range []struct {
		channels []string
		count    func(context.Context, ...string) *redis.MapStringIntCmd
	}{{channels, c.PubSubNumSub}, {sharded, c.PubSubShardNumSub}} {
		for some := range slices.Chunk(ask.channels, 1000) {
			receivers, err := ask.count(ctx, some...).Result()
			if err != nil {
				return found, err
			}
			for channel, n := range receivers {
				if n > 0 {
					found[channel] = true
				}
			}
		}
	}
	return found, nil
}

// Listening tells whether the process of at least one address is connected now to its mailbox on
// the topic's server, the only one that is asked. An empty address has no process. If the server's
// user may not ask, Listening returns true.
func Listening(ctx context.Context, client *servers.Client, topic *queue.Topic, addresses ...string) (bool, error) {
	channels, sharded := channelsOf(addresses)
	if len(channels)+len(sharded) == 0 {
		return false, nil
	}
	found, err := ask(ctx, client, topic, channels, sharded)
	if errors.Is(refusal.Of(err), refusal.ErrForbidden) {
		return true, nil
	}
	return len(found) > 0, err
}

// ask returns those of the channels that have receivers on the topic's server.
func ask(ctx context.Context, client *servers.Client, topic *queue.Topic, channels, sharded []string) (map[string]bool, error) {
	return servers.AskMaster(ctx, client, topic.Key(), func(ctx context.Context, c redis.UniversalClient) (map[string]bool, error) {
		return withReceivers(ctx, c, channels, sharded)
	})
}

// Addressed are addresses of processes that work for a topic.
type Addressed struct {
	Topic     *queue.Topic
	Addresses []string
}

// answersIn is for how long Gone waits for a server that does not answer, at least. It goes on for
// half a second more until the server counts as lost.
const answersIn = time.Second

// Gone returns those addresses whose processes are not connected to their mailboxes now. It asks
// each topic's server about the topic's addresses, all servers at the same time. If a server does
// not answer soon, or its user may not ask, Gone returns the error, and none of the server's
// addresses is among those that it returns.
func Gone(ctx context.Context, client *servers.Client, all []Addressed) (gone map[string]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	gone = map[string]bool{}
	for _, some := range servers.PerNode(ctx, client, all, func(a Addressed) string { return a.Topic.Key() }) {
		asking.Go(func() {
			var addresses []string
			for _, a := range some {
				addresses = append(addresses, a.Addresses...)
			}
			channels, sharded := channelsOf(addresses)
			slices.Sort(channels)
			slices.Sort(sharded)
			var found map[string]bool
			var err error
			if len(channels)+len(sharded) > 0 {
				found, err = ask(ctx, client, some[0].Topic, slices.Compact(channels), slices.Compact(sharded))
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			for _, address := range addresses {
				if end := strings.LastIndexByte(address, '|'); end < 0 || !found[address[:end]] {
					gone[address] = true
				}
			}
		})
	}
	asking.Wait()
	return gone, refusal.To("see who is connected", "pubsub|numsub", errors.Join(errs...))
}
