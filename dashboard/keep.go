package dashboard

import (
	"fmt"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// keepHistory sets, turns off or resets for how long a group keeps what became of messages.
func (d *Dashboard) keepHistory(c *call) (string, error) {
	topic, group, why := c.q("t"), c.q("g"), strings.TrimSpace(c.q("why"))
	act := admin.Act{By: c.user.Name, Action: "keep-history", Topic: topic, Group: group, Detail: why}
	var did admin.HistoryChange
	var err error
	switch c.PathValue("do") {
	case "set", "off":
		var history admin.History
		if c.PathValue("do") == "set" {
			if history.Retention, err = span(c.q("keep")); err == nil {
				history.Max, err = numberOf(c, "most")
			}
			if err != nil {
				return "", err
			}
		}
		did, err = d.admin.SetHistory(c.ctx, topic, group, history)
		if act.Detail = history.String(); err == nil {
			act.Detail = did.After.History.String()
		}
		if why != "" {
			act.Detail += ": " + why
		}
	case "reset":
		act.Action = "reset-history"
		did, err = d.admin.ResetHistory(c.ctx, topic, group)
	default:
		return "", errNoPage
	}
	d.record(c.ctx, act, err)
	return d.back("/topic", fmt.Sprintf("The history of group %s is now: %s.", texts.Clip(group, 80), did.After), "t", topic), err
}
