package main

import (
	"net/url"
	"slices"
	"strings"
)

// credentials are a user and a password.
type credentials struct{ user, password string }

// readURL reads the URL in a setting, and returns it without the credentials in it. Errors do not
// contain the URL, because it may have a password.
func readURL(s *settings, name, text string, schemes ...string) (*url.URL, credentials, error) {
	if strings.Contains(text, "@") && s.find(name).given == byFlag {
		return nil, credentials{}, refuse("--%s has a user or password in it, visible to everybody on this machine; "+
			"set %s instead, or use the settings for user and password", name, variable(name))
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !slices.Contains(schemes, u.Scheme) {
		return nil, credentials{}, refuse("--%s must be a URL that begins with %s:// and has a host", name, strings.Join(schemes, ":// or "))
	}
	if rest := u.EscapedPath() + u.RawQuery + u.EscapedFragment(); strings.Contains(rest, "@") || u.Fragment != "" {
		// An unencoded slash in a password ends the address, so that the password is in the path.
		return nil, credentials{}, refuse("--%s has a #, or an @ after the address; special characters must be percent-encoded, "+
			"such as /, ?, # and @ in a password", name)
	}
	var found credentials
	if u.User != nil {
		found.user = u.User.Username()
		found.password, _ = u.User.Password()
		u.User = nil
	}
	return u, found, nil
}

// or returns the credentials, with user and password replaced where the arguments are not empty.
func (c credentials) or(user, password string) credentials {
	if user != "" {
		c.user = user
	}
	if password != "" {
		c.password = password
	}
	return c
}
