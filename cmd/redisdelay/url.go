package main

import (
	"net/url"
	"slices"
	"strings"
)

// credentials are who the program says it is.
type credentials struct{ user, password string }

// readURL reads the value of a setting that is a URL, and takes the credentials out of it. Errors do not repeat it.
func readURL(s *settings, name, text string, schemes ...string) (*url.URL, credentials, error) {
	if strings.Contains(text, "@") && s.find(name).given == byFlag {
		return nil, credentials{}, refuse("--%s has a user or password in it, which anybody on this machine would see; "+
			"set %s instead, or give them by settings of their own", name, variable(name))
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !slices.Contains(schemes, u.Scheme) {
		return nil, credentials{}, refuse("--%s is not a URL that begins with %s:// and has a host", name, strings.Join(schemes, ":// or "))
	}
	if rest := u.EscapedPath() + u.RawQuery + u.EscapedFragment(); strings.Contains(rest, "@") || u.Fragment != "" {
		// A password with a slash in it ends the address, and is in what follows.
		return nil, credentials{}, refuse("--%s has a # or, behind the address, an @; what is special has to be percent-encoded, "+
			"as /, ?, # and @ in a password", name)
	}
	var found credentials
	if u.User != nil {
		found.user = u.User.Username()
		found.password, _ = u.User.Password()
		u.User = nil
	}
	return u, found, nil
}

// or fills in what is not there.
func (c credentials) or(user, password string) credentials {
	if user != "" {
		c.user = user
	}
	if password != "" {
		c.password = password
	}
	return c
}
