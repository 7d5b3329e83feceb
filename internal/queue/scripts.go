package queue

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

//go:embed lua/*.lua lua/*/*.lua
var luaFiles embed.FS

// Script is one transition of the pipeline, as the server gets it.
type Script struct {
	name     string
	source   string
	sha      string
	contract *contract
}

// tied are the scripts that go in one pipeline, in its order. Each ends with a comment that changes
// with any of them. Without it, a server on which only another version was loaded would have the
// scripts that are the same in both. It would run some calls of a pipeline and lack the others.
var tied = []string{"ack", "release", "nack", "extend", "claim"}

var (
	// composed has the text of each script by its name, and contracts what its header declares.
	composed, contracts, errComposed = compose(luaFiles)

	// allScripts has every script that load returned, in the order in which a server gets them.
	allScripts []Script

	openScript     = load("open")
	lookScript     = load("look")
	registerScript = load("register")
	publishScript  = load("publish")

	// The order is that of the pipeline. While one process loads these scripts, one after the
	// other, the pipeline of another process then lacks all of them from some call on. In another
	// order it could run a later call before an earlier one that has to be sent again.
	ackScript     = load("ack")
	releaseScript = load("release")
	nackScript    = load("nack")
	extendScript  = load("extend")
	claimScript   = load("claim")

	promoteScript = load("promote")
	expireScript  = load("expire")
	purgeScript   = load("purge")
	resignScript  = load("resign")
	faultScript   = load("fault")
	watchScript   = load("watch")
	disownScript  = load("disown")
	signScript    = load("sign")
	removeScript  = load("remove")
	resumeScript  = load("resume")

	// These are for groups with SingleActive.
	succeedScript   = load("succeed")
	standDownScript = load("stand_down")

	// These are for recurring schedules.
	schedulesScript = load("schedules")
	reviewScript    = load("review")
	amendScript     = load("amend")
	overlapScript   = load("overlap")

	// These are for topics with a stream.
	openStreamScript    = load("open_stream")
	promoteStreamScript = load("promote_stream")

	PermitScript = load("permit") // for package rights

	// These are for package operate.
	CancelScript     = load("cancel")
	RestoreScript    = load("restore")
	RescheduleScript = load("reschedule")
	SeekScript       = load("seek")
	RecallScript     = load("recall")
	RequeueScript    = load("requeue")
	DiscardScript    = load("discard")
	KillScript       = load("kill")
	PauseScript      = load("pause")
	EraseScript      = load("erase")
	PageScript       = load("page")
	StatsScript      = load("stats")
	UpcomingScript   = load("upcoming")
	PassingScript    = load("passing")
	InspectScript    = load("inspect")
	ScanScript       = load("scan")
	HalvesScript     = load("halves")
	RangesScript     = load("ranges")
	MendScript       = load("mend")
	SingleScript     = load("single")
	nudgeScript      = load("nudge")
	AssignScript     = load("assign")

	// These move messages to another topic.
	GatherScript = load("gather")
	AdoptScript  = load("adopt")
	DepartScript = load("depart")
	ArriveScript = load("arrive")
)

// Scripts returns the text of each script by its name.
func Scripts() map[string]string {
	sources := make(map[string]string, len(allScripts))
	for _, s := range allScripts {
		sources[s.name] = s.source
	}
	return sources
}

// ScriptName returns the name of the script with this text or this SHA1, or "" if there is none.
func ScriptName(text string) string {
	for _, s := range allScripts {
		if text == s.sha || text == s.source {
			return s.name
		}
	}
	return ""
}

// ScriptSHA returns the SHA1 by which EVALSHA names a script.
func ScriptSHA(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}

func load(name string) Script {
	s := Script{name: name, source: composed[name], sha: ScriptSHA(composed[name]), contract: contracts[name]}
	if errComposed != nil || s.source == "" {
		panic(fmt.Sprintf("no script %s: %v", name, errComposed)) // the files are part of the build
	}
	allScripts = append(allScripts, s)
	return s
}

// phase finds a directive that stands for a part of the script. Parts of the script claim are files
// in lua/claim. They share its locals, and are no functions, which would make each claim slower.
var phase = regexp.MustCompile(`(?m)^--@phase (\w+)\n`)

// strayDirective finds a line that seems to be a directive and is none.
var strayDirective = regexp.MustCompile(`(?m)^\s*--@`)

// compose returns the text of each script in lua by its name, and its contract. The text begins
// with the locals of the contract. The line "--@use wake schedule" of a script stands for the
// snippets wake and schedule, which are files in lua/shared. A snippet names no snippets, and its
// header may declare constants. For "--@each" see contract.eachLine. Each process that imports the
// package does this at its start, so regular expressions see only text that can match.
func compose(files fs.FS) (map[string]string, map[string]*contract, error) {
	scripts, err := readLua(files, "lua")
	if err != nil {
		return nil, nil, err
	}
	snippets, err := readLua(files, "lua/shared")
	if err != nil {
		return nil, nil, err
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	of := func(file string) func(string, ...any) {
		return func(format string, args ...any) { fault("%s.lua "+format, append([]any{file}, args...)...) }
	}
	shared := map[string]*contract{}
	for name, snippet := range snippets {
		shared[name] = readContract(snippet.text, of("lua/shared/"+name))
	}
	users := map[string]int{} // of each snippet
	sources, all := map[string]string{}, map[string]*contract{}
	for name, script := range scripts {
		wrong := of("lua/" + name)
		c := readContract(script.text, wrong)
		all[name] = c
		var text strings.Builder
		text.WriteString("-- " + name + "\n" + c.locals())
		phases, err := readLua(files, "lua/"+name)
		if err != nil {
			return nil, nil, err
		}
		code := script.code
		if strings.Contains(code, "--@phase") {
			code = phase.ReplaceAllStringFunc(code, func(line string) string {
				its := phase.FindStringSubmatch(line)[1]
				if phases[its].code == "" {
					wrong("has no phase %q, or has it twice", its)
				}
				defer delete(phases, its)
				return phases[its].code
			})
		}
		for left := range phases {
			wrong("does not name its phase %q", left)
		}
		used := map[string]bool{}
		for line := range strings.Lines(code) {
			if strings.Contains(line, "KEYS") || strings.Contains(line, "ARGV") {
				if m := direct.FindString(line); m != "" {
					wrong("uses %s; its header declares names", m)
				}
			}
			snippetNames, directive := strings.CutPrefix(line, "--@use ")
			switch {
			case directive:
			case strings.HasPrefix(strings.TrimSpace(line), "--@each "):
				if line, err = c.eachLine(line); err != nil {
					wrong("%w", err)
				}
				fallthrough
			default:
				text.WriteString(line)
				continue
			}
			for _, snippet := range strings.Fields(snippetNames) {
				switch {
				case snippets[snippet].text == "":
					fault("lua/%s.lua uses the snippet %q, which does not exist", name, snippet)
					continue
				case used[snippet]:
					fault("lua/%s.lua uses the snippet %q twice", name, snippet)
				}
				text.WriteString(shared[snippet].constantLocals() + snippets[snippet].code)
				for constant, value := range shared[snippet].constants {
					c.constants[constant] = value
				}
				used[snippet] = true
				users[snippet]++
			}
		}
		sources[name] = text.String()
		if strings.Contains(sources[name], "--@") && strayDirective.MatchString(sources[name]) {
			fault("lua/%s.lua, or a snippet of it, has a line that begins with --@ and is no --@use", name)
		}
	}
	for snippet := range snippets {
		if users[snippet] == 0 {
			fault("no script uses the snippet %q", snippet)
		}
	}
	together := ""
	for _, name := range tied {
		if sources[name] == "" {
			fault("there is no lua/%s.lua", name)
		}
		together += sources[name]
	}
	for _, name := range tied {
		sources[name] += "-- version " + ScriptSHA(together) + "\n"
	}
	return sources, all, errors.Join(faults...)
}

// luaFile is a Lua file: its whole text, and its code without empty lines and comment lines. These
// would take memory of the server and change the hash.
type luaFile struct{ text, code string }

// readLua returns the Lua files in a directory by their names. It refuses a string over several
// lines, which could have a line that looks like a comment.
func readLua(files fs.FS, dir string) (map[string]luaFile, error) {
	paths, err := fs.Glob(files, dir+"/*.lua")
	read := map[string]luaFile{}
	for _, file := range paths {
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return nil, err
		}
		var kept strings.Builder
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "[[") || strings.Contains(line, "[=") || strings.HasSuffix(line, "\\\n") {
				return nil, fmt.Errorf("%s: a string or comment over several lines: %s", file, line)
			}
			bare := strings.TrimSpace(line)
			if bare != "" && (!strings.HasPrefix(bare, "--") || strings.HasPrefix(bare, "--@")) {
				kept.WriteString(strings.TrimRight(line, "\r\n") + "\n")
			}
		}
		read[strings.TrimSuffix(path.Base(file), ".lua")] = luaFile{string(text), kept.String()}
	}
	return read, err
}
