// Package refusal says what a server's refusals mean: what its user lacks, which command is
// missing, or that the server is full. It knows ACL rules and the words of servers, and no topic.
package refusal

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrForbidden means that the server's user lacks a permission, or the server a command.
	ErrForbidden = errors.New("forbidden by Redis")
	// ErrServerFull means that the server is at its memory limit and takes nothing more.
	ErrServerFull = errors.New("the Redis server is full: it is at its maxmemory")
)

// Lack is an ErrForbidden: it names what calls need and the server refuses.
type Lack struct {
	rules  []string // ACL rules that its user needs: commands, keys and channels
	Absent []string // commands that it does not have
	said   error    // the first of its errors; nil: there is none
}

// Any tells whether anything is lacking.
func (l *Lack) Any() bool { return len(l.rules)+len(l.Absent) > 0 || l.said != nil }

// Need adds ACL rules that the user needs.
func (l *Lack) Need(rules ...string) { l.rules = union(l.rules, rules) }

// Miss adds commands that the server does not have.
func (l *Lack) Miss(commands ...string) { l.Absent = union(l.Absent, commands) }

// Explain adds what a command needs that the server has refused: the command, unless the server
// says that it is about keys or channels, and the rules for these.
func (l *Lack) Explain(command string, rules ...string) {
	if len(l.Absent) > 0 {
		return
	}
	if said := l.said.Error(); len(l.rules) == 0 && !deniesKeys(said) && !deniesChannels(said) {
		l.Need(Command(command))
	}
	l.Need(rules...)
}

// Merge adds all that another lacks.
func (l *Lack) Merge(other *Lack) {
	l.Need(other.rules...)
	l.Miss(other.Absent...)
	if l.said == nil {
		l.said = other.said
	}
}

// LacksCommand tells whether an error says that the server does not have a command.
func LacksCommand(err error) bool {
	said := (*Lack)(nil)
	return errors.As(err, &said) && len(said.Absent) > 0
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

func (l *Lack) Error() string {
	var parts []string
	if len(l.rules) > 0 {
		// ACL SETUSER takes the rules in any order: here commands, then keys, then channels.
		rules := slices.SortedStableFunc(slices.Values(l.rules), func(a, b string) int {
			return strings.IndexByte(kindsOfRules, a[0]) - strings.IndexByte(kindsOfRules, b[0])
		})
		parts = append(parts, "the user has to be allowed "+strings.Join(rules, " "))
	}
	if len(l.Absent) > 0 {
		parts = append(parts, fmt.Sprintf("the server has no %s: it is older than Redis 6.2, or its rename-command took that away;"+
			" remove rename-command from its configuration, and restrict users by an ACL instead", strings.Join(l.Absent, ", ")))
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
func (l *Lack) Unwrap() []error {
	if l.said == nil {
		return []error{ErrForbidden}
	}
	return []error{ErrForbidden, l.said}
}

// AllForbidden returns one error for several, each of which may be nil. It names all that they lack
// at once.
func AllForbidden(errs ...error) error {
	all, others := &Lack{}, []error(nil)
	for _, err := range errs {
		if said := (*Lack)(nil); errors.As(err, &said) {
			all.Merge(said)
		} else {
			others = append(others, err)
		}
	}
	if all.Any() {
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

// Of adds to an error of the server the error of this library that it stands for:
// ErrForbidden, with what the user must be allowed if that is known, or ErrServerFull. It returns
// other errors as they are.
func Of(err error) error {
	var server redis.Error
	if errors.Is(err, ErrForbidden) || errors.Is(err, ErrServerFull) || !errors.As(err, &server) {
		return err
	}
	said := server.Error()
	if full(said) {
		return fmt.Errorf("%w: %w", ErrServerFull, err)
	}
	if unknown := unknownCommand.FindStringSubmatch(said); unknown != nil {
		return &Lack{Absent: []string{strings.ToUpper(unknown[1])}, said: err}
	}
	if unknownInScript.MatchString(said) {
		return &Lack{said: err}
	}
	if !deniesPermission(said) {
		return err
	}
	l := &Lack{said: err}
	if named := namedCommand.FindStringSubmatch(said); named != nil {
		l.Need(Command(named[1]))
	}
	return l
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

// To is Of for a command on the registry or a channel, which may be on another node.
// The error says what the command does. The rules are those of its keys and channels.
func To(what, command string, err error, rules ...string) error {
	err = Of(err)
	said := (*Lack)(nil)
	switch {
	case errors.Is(err, ErrServerFull):
	case !errors.As(err, &said):
		return err
	case slices.ContainsFunc(said.rules, func(rule string) bool { return strings.HasPrefix(rule, "+cluster") }):
		said.rules = []string{"+cluster|slots"} // the client of a Cluster asks for the slots first
	default:
		said.Explain(command, rules...)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// OfScript is Of for a call of a script. If the server names neither commands nor keys, it adds all
// of the script.
func OfScript(err error, commands func() []string, keys []string) error {
	err = Of(err)
	said := (*Lack)(nil)
	if !errors.As(err, &said) {
		return err
	}
	switch text := said.said.Error(); {
	case deniesKeys(text):
		for _, pattern := range patterns(keys) {
			said.Need("~" + pattern)
		}
	case unknownInScript.MatchString(text):
		said.Miss(strings.Join(commands(), " or "))
	case len(said.rules)+len(said.Absent) == 0 && !strings.HasPrefix(text, "NOPERM"):
		for _, command := range commands() {
			said.Need(Command(command))
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

// Command returns the ACL rule that allows a command.
func Command(command string) string { return "+" + strings.ToLower(command) }

// Keys returns the ACL rule that allows all keys with the prefix.
func Keys(prefix string) string { return "~" + prefix + ":*" }
