package dashboard

import (
	"context"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// memory is the page of what topics take in Redis.
func (d *Dashboard) memory(c *call) (*view, error) {
	use, err := cached(c.ctx, &d.reads, "memory", func(ctx context.Context) (admin.MemoryUse, error) {
		return d.admin.Memory(ctx, admin.MemoryOptions{})
	})
	if err != nil {
		return nil, err
	}
	return &view{Title: "Memory", Crumbs: []crumb{{"Topics", d.address("/")}}, Now: d.sweep.now(), Data: use}, nil
}
