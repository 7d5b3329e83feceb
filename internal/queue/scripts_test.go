package queue_test

import (
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// luaFiles are the Lua files, to be changed.
func luaFiles(t *testing.T) fstest.MapFS {
	files := fstest.MapFS{}
	for _, pattern := range []string{"lua/*.lua", "lua/*/*.lua"} {
		paths, err := fs.Glob(queue.LuaFiles, pattern)
		require.NoError(t, err)
		for _, file := range paths {
			text, err := fs.ReadFile(queue.LuaFiles, file)
			require.NoError(t, err)
			files[file] = &fstest.MapFile{Data: text}
		}
	}
	return files
}

// add puts text at the end of a file, or makes a new one.
func add(files fstest.MapFS, file, text string) {
	var data []byte
	if old := files[file]; old != nil {
		data = slices.Clone(old.Data)
	}
	files[file] = &fstest.MapFile{Data: append(data, text...)}
}

// use is the line that names snippets.
var use = regexp.MustCompile(`(?m)^--@use ([\w ]+)$`)

// usersOf returns the scripts that name the snippet.
func usersOf(files fstest.MapFS, snippet string) (users []string) {
	for file, data := range files {
		for _, names := range use.FindAllStringSubmatch(string(data.Data), -1) {
			if slices.Contains(strings.Fields(names[1]), snippet) {
				users = append(users, strings.TrimSuffix(path.Base(file), ".lua"))
			}
		}
	}
	return users
}

// tied are the scripts of one pipeline, in its order.
var tied = []string{"ack", "release", "nack", "extend", "claim"}

// A server may have only the scripts of another version. A pipeline has to find all of its scripts
// there, or none.
func TestAChangedSnippetChangesItsScriptsAndScriptsTiedToThem(t *testing.T) {
	t.Parallel()
	before, err := queue.Compose(luaFiles(t))
	require.NoError(t, err)
	require.Equal(t, queue.Scripts(), before)
	snippets, err := fs.Glob(queue.LuaFiles, "lua/shared/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, snippets)
	for _, file := range snippets {
		files := luaFiles(t)
		want := usersOf(files, strings.TrimSuffix(path.Base(file), ".lua"))
		if slices.ContainsFunc(want, func(name string) bool { return slices.Contains(tied, name) }) {
			want = append(want, tied...)
		}
		slices.Sort(want)

		add(files, file, "redis.call('PING')\n")
		require.Equal(t, slices.Compact(want), changed(t, before, files), file)
	}
}

// changed returns the names of the scripts whose hash is not that of before.
func changed(t *testing.T, before map[string]string, files fs.FS) (names []string) {
	t.Helper()
	after, err := queue.Compose(files)
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if queue.ScriptSHA(after[name]) != queue.ScriptSHA(before[name]) {
			names = append(names, name)
		}
	}
	return names
}

func TestAChangedScriptChangesItsHashAndThatOfScriptsTiedToIt(t *testing.T) {
	t.Parallel()
	before := queue.Scripts()
	for name := range before {
		want := []string{name}
		if slices.Contains(tied, name) {
			want = slices.Sorted(slices.Values(tied))
		}
		files := luaFiles(t)
		add(files, "lua/"+name+".lua", "redis.call('PING')\n")
		require.Equal(t, want, changed(t, before, files))
		files = luaFiles(t)
		add(files, "lua/"+name+".lua", "  -- a comment\n\n")
		require.Empty(t, changed(t, before, files), "comments are not sent")
	}
}

func TestSnippetsStandWhereTheyAreNamed(t *testing.T) {
	t.Parallel()
	files := luaFiles(t)
	add(files, "lua/shared/first.lua", "-- first: a comment\n\nlocal one = '--@' -- kept\n")
	add(files, "lua/shared/second.lua", "local two = one") // without a last newline
	add(files, "lua/new.lua", "-- new: a comment\n\nlocal zero\n  -- another\n--@use first second\r\n\n  return two\n")
	scripts, err := queue.Compose(files)
	require.NoError(t, err)
	require.Equal(t, "-- new\nlocal zero\nlocal one = '--@' -- kept\nlocal two = one\n  return two\n", scripts["new"])
}

func TestFilesThatCannotBeComposedAreRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ file, text, want string }{
		{"lua/claim.lua", "--@use missing\n", `lua/claim.lua uses the snippet "missing", which does not exist`},
		{"lua/claim.lua", "--@use wake\n", `lua/claim.lua uses the snippet "wake" twice`},
		{"lua/discard.lua", "--@use each each\n", `lua/discard.lua uses the snippet "each" twice`},
		{"lua/shared/lonely.lua", "local x = 1\n", `no script uses the snippet "lonely"`},
		{"lua/shared/wake.lua", "--@use schedule\n", `lua/claim.lua, or a snippet of it, has a line that begins with --@`},
		{"lua/claim.lua", "  --@use wake\n", `lua/claim.lua, or a snippet of it, has a line that begins with --@`},
		{"lua/claim.lua", "--@phase sleep\n", `lua/claim.lua has no phase "sleep", or has it twice`},
		{"lua/claim.lua", "--@phase take\n", `lua/claim.lua has no phase "take", or has it twice`},
		{"lua/claim/sleep.lua", "local x = 1\n", `lua/claim.lua does not name its phase "sleep"`},
		{"lua/claim.lua", "--@if wake\n", `lua/claim.lua, or a snippet of it, has a line that begins with --@`},
		{"lua/claim.lua", "--[[ a comment\n--]]\n", "lua/claim.lua: a string or comment over several lines: --[[ a comment"},
		{"lua/shared/wake.lua", "local s = [==[\n]==]\n", "lua/shared/wake.lua: a string or comment over several lines"},
		{"lua/claim.lua", "local s = '\\\n-- not a comment'\n", "lua/claim.lua: a string or comment over several lines"},
	} {
		files := luaFiles(t)
		add(files, test.file, test.text)
		_, err := queue.Compose(files)
		require.ErrorContains(t, err, test.want)
	}
	for _, tied := range tied {
		files := luaFiles(t)
		delete(files, "lua/"+tied+".lua")
		_, err := queue.Compose(files)
		require.ErrorContains(t, err, "there is no lua/"+tied+".lua")
	}
}

// declared is an entry of a header, and countOf a block of keys: both become locals.
var (
	declared = regexp.MustCompile(`^--   (?:(\w+) +\w[\w ]*:|(\w+) = )`)
	countOf  = regexp.MustCompile(`^-- KEYS of each (\w+)`)
)

// The locals in the header of a snippet have to be declared above the line that names it.
func TestEachSnippetIsAfterTheSnippetsItUses(t *testing.T) {
	t.Parallel()
	files := luaFiles(t)
	uses := regexp.MustCompile(`(?m)^-- Uses +(.*)$`)
	count := 0
	for file, data := range files {
		if strings.HasPrefix(file, "lua/shared/") {
			continue
		}
		above := ""
		for line := range strings.Lines(string(data.Data)) {
			if m := declared.FindStringSubmatch(line); m != nil {
				line = "local " + m[1] + m[2] + "\n"
			} else if m := countOf.FindStringSubmatch(line); m != nil {
				line = "local " + m[1] + "_count\n"
			}
			above += line
			names := use.FindStringSubmatch(strings.TrimSpace(line))
			if names == nil {
				continue
			}
			for _, snippet := range strings.Fields(names[1]) {
				text := string(files["lua/shared/"+snippet+".lua"].Data)
				if m := uses.FindStringSubmatch(text); m != nil {
					for _, name := range strings.Split(m[1], ", ") {
						require.Regexp(t, `(?m)^local (function )?([\w, ]*, )?`+name+`\b`, above, "%s for %s", file, snippet)
						count++
					}
				}
				for line := range strings.Lines(text) {
					if m := declared.FindStringSubmatch(line); m != nil {
						line = "local " + m[1] + m[2] + "\n"
					}
					above += line
				}
			}
		}
	}
	require.Greater(t, count, 50)
}

func TestEachSnippetIsUsedWhereItIsNamed(t *testing.T) {
	t.Parallel()
	files := luaFiles(t)
	comments := regexp.MustCompile(`(?m)^ *--.*$`)
	code := func(file string) string { return comments.ReplaceAllString(string(files[file].Data), "") }
	local := regexp.MustCompile(`(?m)^local (?:function )?(\w+)`)
	for file, data := range files {
		for _, names := range use.FindAllStringSubmatch(string(data.Data), -1) {
			snippets := strings.Fields(names[1])
			for _, snippet := range snippets {
				rest := code(file)
				for phase := range files { // of the script
					if strings.HasPrefix(phase, strings.TrimSuffix(file, ".lua")+"/") {
						rest += code(phase)
					}
				}
				for _, other := range snippets {
					if other != snippet {
						rest += code("lua/shared/" + other + ".lua")
					}
				}
				used := false
				text := code("lua/shared/" + snippet + ".lua")
				for line := range strings.Lines(string(files["lua/shared/"+snippet+".lua"].Data)) {
					if m := declared.FindStringSubmatch(line); m != nil {
						text += "local " + m[2] + "\n"
					}
				}
				for _, m := range local.FindAllStringSubmatch(text, -1) {
					used = used || regexp.MustCompile(`\b`+m[1]+`\b`).MatchString(rest)
				}
				require.True(t, used, "%s names the snippet %s and does not use it", file, snippet)
			}
		}
	}
}

func TestScriptsCallOnlyFunctionsThatTheyHave(t *testing.T) {
	t.Parallel()
	text := regexp.MustCompile(`'(?:[^'\\]|\\.)*'`)
	calls := regexp.MustCompile(`(^|[^.\w])(\w+)\(`)
	ofLua := []string{"unpack", "tonumber", "ipairs", "pairs", "type", "next", "function", "and", "or", "not", "in", "return", "if"}
	for name, source := range queue.Scripts() {
		source = regexp.MustCompile(`--.*`).ReplaceAllString(text.ReplaceAllString(source, "''"), "")
		for _, m := range calls.FindAllStringSubmatchIndex(source, -1) {
			called := source[m[4]:m[5]]
			if !slices.Contains(ofLua, called) {
				require.Regexp(t, `local function `+called+`\(`, source[:m[5]+1], "%s calls %s", name, called)
			}
		}
	}
}

// commands are the commands that scripts may use, and the first Redis version that had them so.
var commands = map[string]string{
	"TIME": "2.6", "PUBLISH": "2.0", "GET": "1.0", "SET": "2.6.12", "DEL": "1.0",
	"HGET": "2.0", "HMGET": "2.0", "HSET": "4.0", "HDEL": "2.4", "HLEN": "2.0", "HKEYS": "2.0", "HGETALL": "2.0", "HEXISTS": "2.0", "HINCRBY": "2.0", "HSTRLEN": "3.2",
	"LLEN": "1.0", "LRANGE": "1.0", "LPUSH": "2.4", "RPUSH": "2.4", "LPOP": "6.2", "LTRIM": "1.0", "LSET": "1.0",
	"ZADD": "6.2", "ZREM": "2.4", "ZCARD": "1.2", "ZCOUNT": "2.0", "ZSCORE": "1.2", "ZRANGE": "1.2", "ZRANGEBYSCORE": "1.0.5", "ZREVRANGEBYSCORE": "2.2",
	"INFO": "1.0", "EXISTS": "1.0", "UNLINK": "4.0", "HSCAN": "2.8", "ZSCAN": "2.8",
	"XADD": "5.0", "XLEN": "5.0", "XDEL": "5.0", "XTRIM": "6.2",
	"ZREMRANGEBYRANK": "2.0", "PUBSUB": "2.8", "ZREMRANGEBYSCORE": "1.2", "ZPOPMIN": "5.0", "PEXPIRE": "2.6",
}

// moves is ZADD with GT, which the embedded server has too.
var moves = regexp.MustCompile(`call\('ZADD', \w+, ('XX', )?'GT', `)

var called = regexp.MustCompile(`redis\.p?call\('?(\w+)'?`)

func TestScriptsRunOnTheOldestRedisAndInTheEmbeddedOne(t *testing.T) {
	t.Parallel()
	for name, source := range queue.Scripts() {
		for _, call := range called.FindAllStringSubmatch(source, -1) {
			// A command may be an argument of the function each. Only servers that have SPUBLISH
			// have sharded channels.
			if call[1] != "command" && call[1] != "SPUBLISH" {
				require.Contains(t, commands, call[1], name)
			}
		}
		for _, call := range regexp.MustCompile(`each\('(\w+)'`).FindAllStringSubmatch(source, -1) {
			require.Contains(t, commands, call[1], name)
		}
		require.NotRegexp(t, `#!|\b(struct|cmsgpack|cjson|bit)\.|~= nil|BYSCORE'\)|'(BYSCORE|REV|LT|GT|KEEPTTL)'`, moves.ReplaceAllString(source, ""), name)
		require.Empty(t, globals(source), name)
	}
}

// globals returns the lines of a script that assign to a name that it has not declared.
func globals(source string) string {
	declared := map[string]bool{}
	for _, m := range regexp.MustCompile(`\blocal ([\w, ]+)`).FindAllStringSubmatch(source, -1) {
		for _, name := range strings.Split(m[1], ",") {
			declared[strings.TrimSpace(name)] = true
		}
	}
	for _, m := range regexp.MustCompile(`function \w*\(([\w, ]*)\)`).FindAllStringSubmatch(source, -1) {
		for _, name := range strings.Split(m[1], ",") {
			declared[strings.TrimSpace(name)] = true
		}
	}
	var found []string
	for _, line := range strings.Split(source, "\n") {
		m := regexp.MustCompile(`^\s*(\w+)\s*=[^=]`).FindStringSubmatch(line)
		if m != nil && !declared[m[1]] {
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}

func TestEveryLuaFileSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	for file, data := range luaFiles(t) {
		head, _, _ := strings.Cut(string(data.Data), "\n\n")
		require.True(t, strings.HasPrefix(head, "-- "+strings.TrimSuffix(path.Base(file), ".lua")+": "), file)
		if strings.HasPrefix(file, "lua/shared/") {
			require.Contains(t, head, "\n-- Defines  ", file)
		}
		if strings.Count(file, "/") > 1 { // a snippet or a phase
			continue
		}
		for _, part := range []string{"\n-- KEYS\n", "\n-- Returns", "\n-- Twice: "} {
			require.Contains(t, head, part, file)
		}
	}
}

// Deletions by position are the last writes of a script: see docs/design.md. Only expire differs,
// which puts messages behind older ones.
func TestDeletionsByPositionComeLast(t *testing.T) {
	t.Parallel()
	byPlace := regexp.MustCompile(`redis\.call\('(?:LTRIM|ZREMRANGEBYRANK)'`)
	found := 0
	for name, source := range queue.Scripts() {
		first := byPlace.FindStringIndex(source)
		if first == nil || name == "expire" {
			continue
		}
		found++
		require.NotRegexp(t, `redis\.|\b(each|put|wake|schedule|forget|free_names|ask_role|keep_role)\(`, byPlace.ReplaceAllString(source[first[0]:], ""), name)
	}
	require.Equal(t, 3, found)
}
