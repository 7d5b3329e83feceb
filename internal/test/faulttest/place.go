package faulttest

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// Place is the address of a Redis, in a form that can be passed to a worker.
type Place struct {
	Addrs      []string `json:"addrs"`                 // of the server, of Sentinels, or of nodes of a Cluster
	MasterName string   `json:"master_name,omitempty"` // of Sentinels
	Cluster    bool     `json:"cluster,omitempty"`
	Username   string   `json:"username,omitempty"`
	Password   string   `json:"password,omitempty"`
}

// At returns the place of a single server.
func At(addr string) Place { return Place{Addrs: []string{addr}} }

// Client returns a new client of the place, with default options except for those that change sets.
func (p Place) Client(change ...func(*redis.UniversalOptions)) redis.UniversalClient {
	options := &redis.UniversalOptions{
		Addrs: p.Addrs, MasterName: p.MasterName, IsClusterMode: p.Cluster, Username: p.Username, Password: p.Password,
	}
	for _, c := range change {
		c(options)
	}
	return redis.NewUniversalClient(options)
}

// impatient sets short timeouts, for a client that must not wait for a server that does not answer.
func impatient(o *redis.UniversalOptions) {
	o.MaxRetries = -1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second/4, time.Second/4, time.Second/4
}

// patient sets long timeouts, for a client of a server that answers, on a slow machine. It tries
// once, too.
func patient(o *redis.UniversalOptions) {
	o.MaxRetries = -1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute, time.Minute
}
