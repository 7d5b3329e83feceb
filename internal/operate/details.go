package operate

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
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
// forbidden is the refusal of the user's commands, of which the details are missing. The details of
// a node of a Cluster that does not answer are missing too.
func ReadDetails(ctx context.Context, client *servers.Client, details []*Detail, since time.Time) (forbidden, err error) {
	from := strconv.FormatInt(since.UnixMilli(), 10)
	for _, its := range servers.PerNode(ctx, client, details, (*Detail).key) {
		for some := range slices.Chunk(its, together) {
			refused, err := readDetails(ctx, client, some, from)
			forbidden = refusal.AllForbidden(forbidden, refused)
			if ends(ctx, client, err) {
				return nil, err
			}
			if err != nil {
				break
			}
		}
	}
	return forbidden, nil
}

func (d *Detail) key() string { return d.Topic.Key() }

// readDetails reads the details of groups of one node in a pipeline.
func readDetails(ctx context.Context, client *servers.Client, details []*Detail, from string) (forbidden, err error) {
	type answers struct {
		counts []*redis.IntCmd
		scans  []*redis.ScanCmd
	}
	got, err := servers.AskKey(ctx, client, details[0].key(), func(ctx context.Context, c redis.UniversalClient) (a answers, err error) {
		p := c.Pipeline()
		for _, d := range details {
			a.counts = append(a.counts, p.ZCount(ctx, d.Topic.Keys().Dead(d.Group), from, "+inf"))
			a.scans = append(a.scans, p.HScan(ctx, d.Topic.Keys().Suspects(d.Group), 0, "", 100))
		}
		_, err = p.Exec(ctx)
		return a, err
	})
	if len(got.scans) < len(details) { // there was no call, or a hook of the client panicked
		return nil, err
	}
	for i, d := range details {
		for _, failed := range []error{got.counts[i].Err(), got.scans[i].Err()} {
			switch failed = refusal.Of(failed); {
			case errors.Is(failed, refusal.ErrForbidden):
				forbidden = refusal.AllForbidden(forbidden, failed)
			case ends(ctx, client, failed):
				return nil, failed
			}
		}
		d.RecentDead = int(got.counts[i].Val())
		fields, _ := got.scans[i].Val()
		for pair := range slices.Chunk(fields, 2) {
			expiries, _, _ := strings.Cut(pair[len(pair)-1], " ")
			if n, _ := strconv.Atoi(expiries); n > d.Expiries {
				d.Suspect, d.Expiries = pair[0], n
			}
		}
	}
	return forbidden, nil
}
