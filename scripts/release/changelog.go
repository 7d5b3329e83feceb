package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

const unreleased = "## [Unreleased]\n"

// closed returns CHANGELOG.md with the section of what is unreleased under the name of a version,
// and that section. A new, empty one stands above.
func closed(changelog, version, date string) (text, section string, err error) {
	before, after, found := strings.Cut(changelog, unreleased)
	if !found {
		return "", "", errors.New("CHANGELOG.md has no heading " + strings.TrimSpace(unreleased))
	}
	section, _, _ = strings.Cut(after, "\n## ")
	heading := fmt.Sprintf("## [%s] - %s\n", strings.TrimPrefix(version, "v"), date)
	return before + unreleased + "\n" + heading + after, strings.TrimSpace(section), nil
}

var code = regexp.MustCompile("`[^`]+`")

// names tells whether the code in a section of the changelog has one of some names, as a whole.
func names(section string, accepted []string) bool {
	for _, name := range accepted {
		whole := regexp.MustCompile(`(^|[^\w.])` + regexp.QuoteMeta(name) + `($|[^\w.]|\.\W)`)
		for _, span := range code.FindAllString(section, -1) {
			if whole.MatchString(span) {
				return true
			}
		}
	}
	return false
}
