package queue

import (
	"context"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
)

// The tests of this package see these of its inside. They are in a package of their own, because
// the checker that they end with imports this one.

const (
	Budget = budget
	Memory = memory
)

var (
	Polled          = removeScript.Constant("poll")
	EncodeTopic     = encodeTopic
	MayBeOccurrence = mayBeOccurrence
)

// Encode returns the options as scripts read them.
func (o Options) Encode() string { return o.encode() }

// ParseRecord reads a record of deliveries.
func ParseRecord(text string) (count int, flag, delayedFor, reason string) {
	r := ReadRecord(text)
	return r.Count, r.flag, r.DelayedFor, r.Reason
}

// Sleep has the machine of an operation with this context sleep for so long.
func Sleep(ctx context.Context, d time.Duration) {
	if r, ok := ctx.(*remembered); ok {
		r.until = r.until.Add(-d)
	}
}

// Reply is what the script returned.
func (c *Call) Reply() any { return c.cmd.Val() }

// Keys are the keys that the call declares.
func (c *Call) Keys() []string { return slices.Clone(c.keys) }

// LuaFiles are the files that scripts are composed from.
var LuaFiles fs.FS = luaFiles

// Compose returns the text of each script of some files.
func Compose(files fs.FS) (map[string]string, error) {
	scripts, _, err := compose(files)
	return scripts, err
}

// LoadOrder is the text of every script, in the order in which they are loaded.
func LoadOrder() (sources []string) {
	for _, s := range allScripts {
		sources = append(sources, s.source)
	}
	return sources
}

// NewIDsFrom returns a source of IDs whose randomness is not random.
func NewIDsFrom(entropy io.Reader) *IDs {
	return &IDs{entropy: ulid.Monotonic(entropy, 1)}
}

// JoinCall is one of the calls that Join makes.
func (t *Topic) JoinCall(group string, options GroupOptions, window string) *Call {
	return t.registerCall(group, options, window)
}

// Overwrite has the handle remember a set of groups.
func (t *Topic) Overwrite(groups *Groups) { t.remember(groups) }

// ReadRecurring reads a record as it counts now.
func ReadRecurring(name, text string) Recurring { return readRecurring(name, text, time.Now()) }
