package main

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisSettings are the settings of a connection to Redis. name is their prefix.
type redisSettings struct {
	settings         *settings
	name             string
	addresses        *list
	username         *string
	password         *secret
	db               *int
	cluster          *bool
	sentinelMaster   *string
	sentinelUsername *string
	sentinelPassword *secret
	tls              *tlsSettings
	timeout          *time.Duration
}

// defaultPort is the port of an address without one.
const defaultPort = "6379"

func declareRedis(s *settings, name, usage string) *redisSettings {
	return &redisSettings{
		settings: s,
		name:     name,
		addresses: s.list(name, usage+": `host:port`, or `host` with port 6379, one for a single server, several for a Cluster or Sentinels; or a URL, "+
			"`redis://host:port/db`, or `rediss://` for TLS"),
		username:         s.text(name+"-username", "", "user of Redis's ACL"),
		password:         s.secret(name+"-password", "the password"),
		db:               s.number(name+"-db", 0, "number of the database"),
		cluster:          s.yes(name+"-cluster", false, "the server is a Cluster; implied by several addresses without a Sentinel master"),
		sentinelMaster:   s.text(name+"-sentinel-master", "", "name of the master at the Sentinels"),
		sentinelUsername: s.text(name+"-sentinel-username", "", "user of the Sentinels"),
		sentinelPassword: s.secret(name+"-sentinel-password", "the password of the Sentinels"),
		tls:              declareTLS(s, name, "; or use `rediss://`"),
		timeout:          s.duration(name+"-timeout", 3*time.Second, "how long Redis may take to answer one attempt of a call"),
	}
}

// options returns the options of the client.
func (r *redisSettings) options() (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		DB:               *r.db,
		MasterName:       *r.sentinelMaster,
		SentinelUsername: *r.sentinelUsername,
		SentinelPassword: r.sentinelPassword.value,
		IsClusterMode:    *r.cluster,
		ReadTimeout:      *r.timeout,
		WriteTimeout:     *r.timeout,
		// Probes, scrapes, pages and completions have limits of their own.
		ContextTimeoutEnabled: true,
	}
	user, byURL, err := r.addressed(o)
	if err != nil {
		return nil, err
	}
	user = user.or(*r.username, r.password.value)
	o.Username, o.Password = user.user, user.password
	tlsConfig, err := r.tls.config(byURL)
	o.TLSConfig = tlsConfig
	return o, errors.Join(err, r.fits(o))
}

// addressed reads the addresses or the URL, and returns whether the URL asks for TLS.
func (r *redisSettings) addressed(o *redis.UniversalOptions) (user credentials, tls bool, err error) {
	if len(*r.addresses) == 0 {
		return user, false, refuse("--%s is missing: a host:port", r.name)
	}
	isURL := func(text string) bool { return strings.ContainsAny(text, "/@") }
	if text := (*r.addresses)[0]; slices.ContainsFunc(*r.addresses, isURL) {
		if len(*r.addresses) > 1 {
			return user, false, refuse("--%s has a URL and other addresses; with several, each must be a host:port", r.name)
		}
		u, user, err := readURL(r.settings, r.name, text, "redis", "rediss")
		if err != nil {
			return user, false, err
		}
		if u.RawQuery != "" {
			return user, false, refuse("--%s has parameters after a question mark; use settings instead", r.name)
		}
		if path := strings.Trim(u.Path, "/"); path != "" {
			if o.DB, err = strconv.Atoi(path); err != nil {
				return user, false, refuse("--%s has %q after the address, which is not the number of a database", r.name, path)
			}
			if *r.db != 0 && *r.db != o.DB {
				return user, false, refuse("--%s has database %d, but --%[1]s-db is %[3]d", r.name, o.DB, *r.db)
			}
		}
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		o.Addrs = []string{net.JoinHostPort(u.Hostname(), port)}
		return user, u.Scheme == "rediss", nil
	}
	for _, address := range *r.addresses {
		if !strings.Contains(address, ":") || net.ParseIP(address) != nil {
			address = net.JoinHostPort(address, defaultPort)
		}
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return user, false, refuse("--%s is %.100q, which is not a host:port", r.name, address)
		}
		o.Addrs = append(o.Addrs, address)
	}
	return user, false, nil
}

// fits returns an error for each combination of settings that is invalid.
func (r *redisSettings) fits(o *redis.UniversalOptions) error {
	var errs []error
	cluster := o.IsClusterMode || len(o.Addrs) > 1 && o.MasterName == ""
	if o.IsClusterMode && o.MasterName != "" {
		errs = append(errs, refuse("--%s-cluster and --%[1]s-sentinel-master exclude one another", r.name))
	}
	if cluster && o.DB != 0 {
		errs = append(errs, refuse("--%s-db is %d, but a Cluster has only 0", r.name, o.DB))
	}
	if o.ReadTimeout <= 0 {
		errs = append(errs, refuse("--%s-timeout is %v; it must be positive", r.name, o.ReadTimeout))
	}
	if o.DB < 0 {
		errs = append(errs, refuse("--%s-db is %d; it must be 0 or more", r.name, o.DB))
	}
	if o.MasterName == "" && (o.SentinelUsername != "" || o.SentinelPassword != "") {
		errs = append(errs, refuse("--%s-sentinel-username and -password have no effect without --%[1]s-sentinel-master", r.name))
	}
	// The client signs in only with a password, and would else be the default user.
	if o.Username != "" && o.Password == "" {
		errs = append(errs, refuse("--%s-username needs a password: set --%[1]s-password-file", r.name))
	}
	if o.SentinelUsername != "" && o.SentinelPassword == "" {
		errs = append(errs, refuse("--%s-sentinel-username needs a password: set --%[1]s-sentinel-password-file", r.name))
	}
	return errors.Join(errs...)
}

// given returns whether an address is set.
func (r *redisSettings) given() bool { return len(*r.addresses) > 0 }
