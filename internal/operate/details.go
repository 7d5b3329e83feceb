package operate

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Detail is what Stats does not tell about a group.
type Detail struct {
	Topic *Topic
	Group string

	RecentDead int    // dead letters since some time
	Suspect    string // the message that lost the most leases in a row, of a hundred; "": none
	Expiries   int    // how many leases it lost
}

// ReadDetails reads the details of groups, in pipelines. Dead letters count from a time on.
// forbidden is the refusal of the user's commands, of which the details are missing.
func ReadDetails(ctx context.Context, client *queue.Client, details []*Detail, since time.Time) (forbidden, err error) {
	from := strconv.FormatInt(since.UnixMilli(), 10)
	for some := range slices.Chunk(details, together) {
		counts, scans := make([]*redis.IntCmd, len(some)), make([]*redis.ScanCmd, len(some))
		err := client.Call(func(c redis.UniversalClient) error {
			p := c.Pipeline()
			for i, d := range some {
				counts[i] = p.ZCount(ctx, d.Topic.Keys().Dead(d.Group), from, "+inf")
				scans[i] = p.HScan(ctx, d.Topic.Keys().Suspects(d.Group), 0, "", 100)
			}
			_, err := p.Exec(ctx)
			return err
		})
		if counts[0] == nil || scans[len(some)-1] == nil { // a hook of the client panicked
			return nil, err
		}
		for i, d := range some {
			for _, failed := range []error{counts[i].Err(), scans[i].Err()} {
				switch failed = queue.Refused(failed); {
				case errors.Is(failed, queue.ErrForbidden):
					forbidden = queue.AllForbidden(forbidden, failed)
				case ends(ctx, client, failed):
					return nil, failed
				}
			}
			d.RecentDead = int(counts[i].Val())
			fields, _ := scans[i].Val()
			for pair := range slices.Chunk(fields, 2) {
				expiries, _, _ := strings.Cut(pair[len(pair)-1], " ")
				if n, _ := strconv.Atoi(expiries); n > d.Expiries {
					d.Suspect, d.Expiries = pair[0], n
				}
			}
		}
	}
	return forbidden, nil
}
