package queue

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// lack is an ErrForbidden: it names what calls need and the server refuses.
type lack struct {
	rules  []string // ACL rules that its user needs: commands, keys and channels
	absent []string // commands that it does not have
	said   error    // the first of its errors; nil: there is none
}

func (l *lack) any() bool { return len(l.rules)+len(l.absent) > 0 || l.said != nil }

// need adds ACL rules that the user needs.
func (l *lack) need(rules ...string) { l.rules = union(l.rules, rules) }

// miss adds commands that the server does not have.
func (l *lack) miss(commands ...string) { l.absent = union(l.absent, commands) }

// explain adds what a command needs that the server has refused: the command, unless the server
// says that it is about keys or channels, and the rules for these.
func (l *lack) explain(command string, rules ...string) {
	if len(l.absent) > 0 {
		return
	}
	if said := l.said.Error(); len(l.rules) == 0 && !deniesKeys(said) && !deniesChannels(said) {
		l.need(rule(command))
	}
	l.need(rules...)
}

func (l *lack) merge(other *lack) {
	l.need(other.rules...)
	l.miss(other.absent...)
	if l.said == nil {
		l.said = other.said
	}
}

// LacksCommand tells whether an error says that the server does not have a command.
func LacksCommand(err error) bool {
	said := (*lack)(nil)
	return errors.As(err, &said) && len(said.absent) > 0
}

// union appends the texts of more that all has not.
func union(all, more []string) []string {
	for _, text := range more {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

func (l *lack) Error() string {
	var parts []string
	if len(l.rules) > 0 {
		// ACL SETUSER takes the rules in any order: here commands, then keys, then channels.
		rules := slices.SortedStableFunc(slices.Values(l.rules), func(a, b string) int {
			return strings.IndexByte(kindsOfRules, a[0]) - strings.IndexByte(kindsOfRules, b[0])
		})
		parts = append(parts, "the user has to be allowed "+strings.Join(rules, " "))
	}
	if len(l.absent) > 0 {
		parts = append(parts, fmt.Sprintf("the server has no %s: it is older than Redis 6.2, or its rename-command took that away;"+
			" remove rename-command from its configuration, and restrict users by an ACL instead", strings.Join(l.absent, ", ")))
	}
	text := ErrForbidden.Error()
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, "; ")
	}
	if l.said != nil {
		text += ": " + strings.TrimSpace(l.said.Error())
	}
	return text
}

// kindsOfRules are the characters by which ACL rules begin.
const kindsOfRules = "+~&"

// Unwrap returns ErrForbidden and the server's error.
func (l *lack) Unwrap() []error {
	if l.said == nil {
		return []error{ErrForbidden}
	}
	return []error{ErrForbidden, l.said}
}

// AllForbidden returns one error for several, each of which may be nil. It names all that they lack
// at once.
func AllForbidden(errs ...error) error {
	all, others := &lack{}, []error(nil)
	for _, err := range errs {
		if said := (*lack)(nil); errors.As(err, &said) {
			all.merge(said)
		} else {
			others = append(others, err)
		}
	}
	if all.any() {
		others = append([]error{all}, others...)
	}
	return errors.Join(others...)
}

var (
	// namedCommand finds the command that is not allowed. Redis 6.2 does not name one of a script.
	namedCommand = regexp.MustCompile(`no permissions to run the '([^']+)' command`)
	// unknownCommand finds the command that the server does not have, outside of scripts.
	unknownCommand = regexp.MustCompile("^ERR unknown command ['`]([^'`]+)['`]")
	// unknownInScript finds that a script called a command which the server does not have. Redis
	// 6.2, later versions, and Valkey word it in three ways, without the name.
	unknownInScript = regexp.MustCompile(`Unknown (Redis )?command called from`)
)

// Refused adds to an error of the server the error of this library that it stands for:
// ErrForbidden, with what the user must be allowed if that is known, or ErrServerFull. It returns
// other errors as they are.
func Refused(err error) error {
	var server redis.Error
	if errors.Is(err, ErrForbidden) || errors.Is(err, ErrServerFull) || !errors.As(err, &server) {
		return err
	}
	said := server.Error()
	if full(said) {
		return fmt.Errorf("%w: %w", ErrServerFull, err)
	}
	if unknown := unknownCommand.FindStringSubmatch(said); unknown != nil {
		return &lack{absent: []string{strings.ToUpper(unknown[1])}, said: err}
	}
	if unknownInScript.MatchString(said) {
		return &lack{said: err}
	}
	if !deniesPermission(said) {
		return err
	}
	l := &lack{said: err}
	if named := namedCommand.FindStringSubmatch(said); named != nil {
		l.need(rule(named[1]))
	}
	return l
}

// wrongType tells whether a server's error says that a key has a wrong type. In a script of Redis
// 6.2 the error begins otherwise.
func wrongType(err error) bool {
	var server redis.Error
	return errors.As(err, &server) && strings.Contains(server.Error(), "WRONGTYPE Operation")
}

// NameWrongType adds the first key of a wrong type to an error of the server, which names none. It
// returns the error as it is if that is about something else, if the user may not ask, or if the
// key is gone.
func NameWrongType(ctx context.Context, client *Client, keys []string, err error) error {
	if !wrongType(err) {
		return err
	}
	for some := range slices.Chunk(keys, 500) {
		found, asked := AskKey(ctx, client, some[0], func(ctx context.Context, c redis.UniversalClient) ([]*redis.StatusCmd, error) {
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
			if is, want := found[i].Val(), TypeOf(key); is != want && is != "none" {
				return fmt.Errorf("the key %q is a %s, and has to be a %s: %w", key, is, want, err)
			}
		}
	}
	return err
}

// full tells whether a server's error says that it is at its memory limit. In a script of Redis 6.2
// the error begins otherwise.
func full(said string) bool {
	return strings.HasPrefix(said, "OOM ") || strings.Contains(said, "-OOM command not allowed")
}

// deniesPermission tells whether a server's error is about a permission of its user.
func deniesPermission(said string) bool {
	code, text, _ := strings.Cut(said, " ")
	inScript := strings.Contains(text, "user executing the script can't") || strings.Contains(text, "ACL failure in script")
	return code == "NOPERM" || inScript
}

// deniesKeys tells whether a server's error is about keys. The server does not say which keys.
func deniesKeys(said string) bool {
	return strings.Contains(said, "one of the keys") || strings.Contains(said, "access a key")
}

// deniesChannels tells whether a server's error is about channels.
func deniesChannels(said string) bool {
	return strings.Contains(said, "one of the channels") || strings.Contains(said, "access a channel")
}

// RefusedTo is Refused for a command on the registry or a channel, which may be on another node.
// The error says what the command does. The rules are those of its keys and channels.
func RefusedTo(what, command string, err error, rules ...string) error {
	err = Refused(err)
	said := (*lack)(nil)
	switch {
	case errors.Is(err, ErrServerFull):
	case !errors.As(err, &said):
		return err
	case slices.ContainsFunc(said.rules, func(rule string) bool { return strings.HasPrefix(rule, "+cluster") }):
		said.rules = []string{"+cluster|slots"} // the client of a Cluster asks for the slots first
	default:
		said.explain(command, rules...)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// refused is Refused for the call's own error. If the server names neither commands nor keys, it
// adds all of the script.
func (c *Call) refused(err error) error {
	err = Refused(err)
	said := (*lack)(nil)
	if !errors.As(err, &said) {
		return err
	}
	commands := Work{scripts: []string{c.script.name}}.commands()
	switch text := said.said.Error(); {
	case deniesKeys(text):
		for _, pattern := range patterns(c.keys) {
			said.need("~" + pattern)
		}
	case unknownInScript.MatchString(text):
		said.miss(strings.Join(commands, " or "))
	case len(said.rules)+len(said.absent) == 0 && !strings.HasPrefix(text, "NOPERM"):
		for _, command := range commands {
			said.need(rule(command))
		}
	}
	return said
}

// patterns returns the ACL patterns for keys: one for the key prefix, and the name of a stream.
func patterns(keys []string) (all []string) {
	for _, key := range keys {
		if prefix, _, ours := strings.Cut(key, ":{"); ours {
			key = prefix + ":*"
		}
		all = union(all, []string{key})
	}
	return all
}
