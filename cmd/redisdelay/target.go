package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// connection are the settings of the connection, which all commands have.
type connection struct {
	redis     *redisSettings
	keyPrefix *string
	marshaler *choice
	as        *string
}

func declareConnection(s *settings) *connection {
	return &connection{
		redis:     declareRedis(s, "redis", "the Redis where messages wait"),
		keyPrefix: s.text("key-prefix", redisdelay.DefaultKeyPrefix, "start of all keys, the same as the publishers'"),
		marshaler: s.choice("marshaler", "binary", "`binary` or `json`: the publishers' Marshaler", "binary", "json"),
		as:        s.text("as", "", "who you are, for the audit log and for pauses; default user@host"),
	}
}

func (c *connection) codec() redisdelay.MarshalerUnmarshaler {
	if c.marshaler.value == "json" {
		return redisdelay.JSONMarshaler{}
	}
	return redisdelay.BinaryMarshaler{}
}

// connected returns the client, which run closes.
func (a *app) connected() (redis.UniversalClient, error) {
	if a.client == nil {
		options, err := a.redis.options()
		if err != nil {
			return nil, err
		}
		a.redis.watch(options)
		a.client = redis.NewUniversalClient(options)
	}
	return a.client, nil
}

// admin returns the operations on topics.
func (a *app) admin() (*admin.Admin, error) {
	client, err := a.connected()
	if err != nil {
		return nil, err
	}
	operator, err := admin.New(admin.Config{Client: client, KeyPrefix: *a.keyPrefix, Unmarshaler: a.codec(), Marshaler: a.codec()})
	if err != nil {
		return nil, refuse("%w", err)
	}
	return operator, nil
}

// stats returns the operations, and the content of a topic.
func (a *app) stats(ctx context.Context, topic string) (*admin.Admin, admin.Stats, error) {
	operator, err := a.admin()
	if err != nil {
		return nil, admin.Stats{}, err
	}
	stats, err := operator.Stats(ctx, topic)
	return operator, stats, err
}

// groupOf returns the group that a command is about: the named one, or the only one of the topic.
func (a *app) groupOf(ctx context.Context, topic, named string) (*admin.Admin, admin.GroupStats, error) {
	operator, stats, err := a.stats(ctx, topic)
	if err != nil {
		return nil, admin.GroupStats{}, err
	}
	var names []string
	for _, g := range stats.Groups {
		if g.Group == named || named == "" && len(stats.Groups) == 1 {
			return operator, g, nil
		}
		names = append(names, fmt.Sprintf("%q", g.Group))
	}
	switch {
	case len(names) == 0:
		return nil, admin.GroupStats{}, fmt.Errorf("topic %q has no group: nobody has subscribed yet", topic)
	case named == "":
		return nil, admin.GroupStats{}, refuse("topic %q has several groups; name one by --group: %s", topic, strings.Join(names, ", "))
	}
	return nil, admin.GroupStats{}, fmt.Errorf("group %q of topic %q: %w; its groups are %s", named, topic, admin.ErrNotFound, strings.Join(names, ", "))
}

// topics calls do with the plain topics of the topics that are named, or else with all plain
// topics, page by page.
func (a *app) topics(ctx context.Context, named []string, do func(operator *admin.Admin, topics []string) error) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	if len(named) > 0 {
		plain, err := operator.Plain(ctx, named...)
		if errors.Is(err, admin.ErrForbidden) {
			plain, err = named, nil
		}
		if err != nil {
			return err
		}
		return do(operator, plain)
	}
	for cursor := ""; ; {
		var page []string
		if page, cursor, err = operator.Topics(ctx, cursor, 1000); err != nil {
			return err
		}
		slices.Sort(page)
		if err := do(operator, page); err != nil || cursor == "" {
			return err
		}
	}
}

// eachTopic calls do with each topic that is named, or else with all. A topic that cannot be read
// keeps no other from its turn: its error comes at the end. Topics may be removed while all are
// listed.
func (a *app) eachTopic(ctx context.Context, named []string, do func(operator *admin.Admin, topic string) error) error {
	var unreadable []error
	err := a.topics(ctx, named, func(operator *admin.Admin, topics []string) error {
		for _, topic := range topics {
			err := do(operator, topic)
			var server redis.Error
			switch {
			case err == nil:
			case len(named) == 0 && errors.Is(err, admin.ErrNotFound):
				a.out.note("Topic %q does not exist.", topic)
			case errors.Is(err, admin.ErrNotFound), errors.Is(err, admin.ErrLayout), errors.Is(err, admin.ErrChanging),
				errors.As(err, &server) && strings.Contains(server.Error(), "WRONGTYPE"):
				unreadable = append(unreadable, aboutTopic(topic, err))
			default:
				return err
			}
		}
		return nil
	})
	return errors.Join(append(unreadable, err)...)
}

// aboutTopic returns an error that names the topic.
func aboutTopic(topic string, err error) error {
	if name := strconv.Quote(topic); !strings.Contains(err.Error(), "topic "+name) {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	return err
}

// groupFlag declares --group, and completes it.
func (a *app) groupFlag(cmd *cobra.Command, group *string) {
	cmd.Flags().StringVar(group, "group", "", "consumer group; needed if the topic has several")
	_ = cmd.RegisterFlagCompletionFunc("group", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.completed(cmd, prefix, func(ctx context.Context) (names []string, err error) {
			if len(args) == 0 {
				return nil, nil
			}
			_, stats, err := a.stats(ctx, args[0])
			for _, g := range stats.Groups {
				names = append(names, g.Group)
			}
			return names, err
		})
	})
}

// completeTopic completes the first argument to the name of a topic.
func (a *app) completeTopic(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.completed(cmd, prefix, func(ctx context.Context) (names []string, err error) {
		if len(args) > 0 {
			return nil, nil
		}
		return names, a.topics(ctx, nil, func(_ *admin.Admin, page []string) error {
			for _, name := range page {
				if whole, _, ok := partition.Parse(name); ok && !slices.Contains(names, whole) {
					names = append(names, whole)
				}
				names = append(names, name)
			}
			return nil
		})
	})
}

// completeGroup completes the name of a topic, and then that of one of its groups.
func (a *app) completeGroup(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeTopic(cmd, args, prefix)
	}
	return a.completed(cmd, prefix, func(ctx context.Context) (names []string, err error) {
		_, stats, err := a.stats(ctx, args[0])
		for _, g := range stats.Groups {
			names = append(names, g.Group)
		}
		return names, err
	})
}

// completeReason completes --reason to the reasons of dead letters, as "dead reasons" shows them.
// It reads the oldest letters only.
func (a *app) completeReason(c *cobra.Command, group *string) {
	const most = 2000
	_ = c.RegisterFlagCompletionFunc("reason", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.completed(cmd, prefix, func(ctx context.Context) (reasons []string, err error) {
			if len(args) == 0 {
				return nil, nil
			}
			operator, g, err := a.groupOf(ctx, args[0], *group)
			if err != nil {
				return nil, err
			}
			found, err := operator.DeadReasons(ctx, args[0], admin.Bulk{Group: g.Group, Limit: most})
			for _, r := range found.Reasons {
				reasons = append(reasons, r.Reason)
			}
			return reasons, err
		})
	})
}

// completed returns the names that begin with the prefix, and are plain text.
func (a *app) completed(cmd *cobra.Command, prefix string, find func(context.Context) ([]string, error)) (found []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Root().Context()), cmp.Or(a.sys.completes, 2*time.Second))
	defer cancel()
	names, err := []string(nil), a.settings.resolve(cmd.Flags())
	if err == nil {
		names, err = find(ctx)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, name := range names {
		if strings.HasPrefix(name, prefix) && clean(name) == name && len(found) < 1000 {
			found = append(found, name)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// choosing are the flags that choose messages.
type choosing struct {
	reason, since, until string
	metadata             map[string]string
	limit                int
}

func (c *choosing) declare(flags *pflag.FlagSet, dead bool) {
	if dead {
		flags.StringVar(&c.reason, "reason", "", "only those whose reason contains this text, also as dead reasons shows it")
	}
	flags.StringVar(&c.since, "since", "", "only from this `time` on, such as 20h (ago), \"yesterday 9:00\" or 2026-11-27T09:00:00Z")
	flags.StringVar(&c.until, "until", "", "only before this `time`, in the same forms")
	flags.StringToStringVar(&c.metadata, "metadata", nil, "only those with this `key=value` in their metadata; may be repeated")
	flags.IntVar(&c.limit, "limit", 0, "at most so many; 0: no limit")
}

// filter returns the filter of the flags. Durations are before now, by the server's clock.
func (c *choosing) filter(now time.Time) (admin.Filter, error) {
	from, err := instant(now, "--since", c.since, when.Past)
	until, errUntil := instant(now, "--until", c.until, when.Past)
	if c.limit < 0 {
		err = errors.Join(err, refuse("--limit is %d; it must be 0 or more", c.limit))
	}
	return admin.Filter{Reason: c.reason, From: from, Until: until, Metadata: c.metadata}, errors.Join(err, errUntil)
}

// String returns the conditions in words, "" without any.
func (c *choosing) String() string {
	var all []string
	add := func(format, value string) {
		if value != "" {
			all = append(all, fmt.Sprintf(format, value))
		}
	}
	add("reason contains %q", c.reason)
	add("since %s", c.since)
	add("until %s", c.until)
	for _, key := range slices.Sorted(maps.Keys(c.metadata)) {
		add("metadata "+key+"=%s", c.metadata[key])
	}
	return strings.Join(all, ", ")
}

// instant returns a time that a person wrote, as when.Parse reads it in the zone of this machine. A
// duration is toward the past or the future from now. "" is the zero time.
func instant(now time.Time, flag, text string, toward when.Direction) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := when.Parse(text, now.Local(), toward)
	if err != nil {
		return t, refuse("%s: %v", flag, err)
	}
	return t, nil
}

// isID matches IDs of messages.
var isID = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{26}$`)

// naming are the flags that say what names a message.
type naming struct{ by string }

func (n *naming) declare(flags *pflag.FlagSet) {
	flags.StringVar(&n.by, "by", "", "what MESSAGE is: `id`, delay-id or uuid; by default an ID if it looks like one, else a delay ID, else a UUID")
}

// find returns a message, and the Ref by which it was found. A UUID, and the delay ID of a message
// that is due, are found by reading the topic; then the Ref has the ID.
func (a *app) find(ctx context.Context, operator *admin.Admin, topic, name string, by naming) (admin.Message, admin.Ref, error) {
	var byUUID bool
	ref := admin.ByDelayID(name)
	switch by.by {
	case "id":
		ref = admin.ByID(name)
		m, err := operator.Get(ctx, topic, ref)
		return m, ref, err
	case "delay-id":
		m, err := operator.Get(ctx, topic, ref)
		return m, ref, err
	case "uuid":
		byUUID = true
	case "":
		if isID.MatchString(name) {
			ref = admin.ByID(name)
		}
		m, err := operator.Get(ctx, topic, ref)
		if !errors.Is(err, admin.ErrNotFound) {
			return m, ref, err
		}
	default:
		return admin.Message{}, ref, refuse("--by is %q; it must be id, delay-id or uuid", by.by)
	}
	filter := admin.Filter{UUID: name}
	if !byUUID { // a message that is due keeps its delay ID, and is not found by it
		filter = admin.Filter{Match: func(m admin.Message) bool { return m.UUID == name || m.DelayID == name }}
	}
	what := map[bool]string{true: "message with UUID", false: "message with ID, delay ID or UUID"}[byUUID]
	m, looked, err := a.findFiltered(ctx, operator, topic, name, filter)
	if err == nil && m.ID == "" {
		err = fmt.Errorf("%s %q of topic %q: %w among %s in all states and groups: %s", what, name, topic, admin.ErrNoMessage, texts.Many(looked.Looked, "message"), texts.Ended)
		if unreadable := looked.SearchedTotal().Unreadable; unreadable > 0 {
			err = fmt.Errorf("%w\n%s", err, a.otherMarshaler(unreadable))
		}
	}
	return m, admin.ByID(m.ID), err
}

// sharing is how many messages with the same name are named at most.
const sharing = 20

// findFiltered returns the message of a topic that a filter chooses, or one without ID. If there
// are several, it names them and refuses.
func (a *app) findFiltered(ctx context.Context, operator *admin.Admin, topic, name string, filter admin.Filter) (m admin.Message, looked admin.Found, err error) {
	looked, err = operator.Find(ctx, admin.Search{Topics: []string{topic}, Filter: filter, Limit: sharing, Most: math.MaxInt, Progress: func(p admin.SearchProgress) {
		a.out.progress("Looking for %q: %s", name, texts.Many(p.Looked, "message"))
	}})
	a.out.endProgress()
	var ids []string
	shared := "UUID"
	if filter.UUID == "" && slices.ContainsFunc(looked.Messages, func(m admin.Message) bool { return m.DelayID == name }) {
		shared = "UUID or delay ID"
	}
	for _, m := range looked.Messages {
		ids = append(ids, m.ID)
	}
	switch {
	case err != nil || len(ids) == 0:
		return m, looked, err
	case len(ids) == sharing:
		return m, looked, refuse("%d messages or more have %s %q; name one by its ID: %s, ...", sharing, shared, name, strings.Join(ids, ", "))
	case len(ids) > 1:
		return m, looked, refuse("%d messages have %s %q; name one by its ID: %s", len(ids), shared, name, strings.Join(ids, ", "))
	}
	m, err = operator.Get(ctx, topic, admin.ByID(ids[0]))
	return m, looked, err
}

// pages calls do with the messages of a query, until it returns false, or until the last page.
// While consumers extend leases, pages of messages in hand have no end. So one that has nothing new
// is the last. The partitions of a topic come one after the other.
func pages(ctx context.Context, operator *admin.Admin, topic string, q admin.Query, do func(admin.Message) bool) error {
	plain, err := operator.Plain(ctx, topic)
	if errors.Is(err, admin.ErrForbidden) {
		plain, err = []string{topic}, nil
	}
	if err != nil {
		return err
	}
	more, missing := true, 0
	for _, name := range plain {
		err := pagesOf(ctx, operator, name, q, func(m admin.Message) bool {
			if name != topic {
				m.Topic = name
			}
			more = do(m)
			return more
		})
		if errors.Is(err, admin.ErrNotFound) && missing+1 < len(plain) { // a partition may lack the group
			missing, err = missing+1, nil
		}
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// pagesOf is pages for a plain topic.
func pagesOf(ctx context.Context, operator *admin.Admin, topic string, q admin.Query, do func(admin.Message) bool) error {
	seen := map[string]bool{} // in hand
	for {
		page, err := operator.List(ctx, topic, q)
		if err != nil {
			return err
		}
		known := 0
		for _, m := range page.Messages {
			if q.State == admin.InHand {
				if seen[m.ID] {
					known++
					continue
				}
				seen[m.ID] = true
			}
			if !do(m) {
				return nil
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" || known > 0 && known == len(page.Messages) {
			return nil
		}
	}
}
