package openvpn

import (
	"os"
	"time"
)

// renewal tells when a server must be started anew because its certificate was replaced: a running
// OpenVPN never reads it again. (A client reads it whenever it connects.)
type renewal struct {
	read versions // what the running openvpn knows
	seen versions // what the last look found
}

// versions are those of the certificate, the key and the authority's certificate.
type versions [3]version

type version struct {
	size    int64
	changed time.Time
}

func (f Files) versions() (v versions) {
	for i, path := range []string{f.Certificate, f.Key, f.CA} {
		if info, err := os.Stat(path); err == nil {
			v[i] = version{size: info.Size(), changed: info.ModTime()}
		}
	}
	return v
}

// due tells whether the files are other ones than those read, and are all there. They are replaced
// one by one, so it waits until a look finds them as the look before did.
func (r *renewal) due(now versions) bool {
	settled := now == r.seen
	r.seen = now
	for _, v := range now {
		if v == (version{}) {
			return false
		}
	}
	if !settled || now == r.read {
		return false
	}
	r.read = now
	return true
}
