package crew

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

const (
	// issuedDir has the identity of members that Issue makes, and joinedDir that of members of a coordinator.
	issuedDir = "/etc/dcol"
	joinedDir = "/var/lib/dcol/identity"
	// authorityDir is a folder of a host's own, which the kernel removes with the host.
	authorityDir = "/run/lab-authority"
	// validity of certificates outlives any experiment.
	validity = 7 * 24 * time.Hour
	// inviteLimit bounds the time until a coordinator that was just started invites members.
	inviteLimit = time.Minute
)

// SessionPort is the port at which waypoints and coordinators listen for members.
const SessionPort = 45672

// FilesIn returns the files of an identity in a folder.
func FilesIn(dir string) collective.Files {
	file := func(name string) string { return filepath.Join(dir, name) }
	return collective.Files{Certificate: file("member.crt"), Key: file("member.key"), CA: file("ca.crt"), CRL: file("ca.crl")}
}

// IdentityDir returns the folder with a member's identity on its host: of one that joined by a coordinator, or
// of one whose identity Issue made.
func IdentityDir(joined bool) string {
	if joined {
		return joinedDir
	}
	return issuedDir
}

// Issue makes identities for members with a throw-away authority. Its keys never touch the machine's own
// files.
func (c Crew) Issue(members ...string) error {
	if len(members) == 0 {
		return nil
	}
	identities := map[string]map[string][]byte{}
	err := c.Host(members[0]).Do(func() error {
		return errors.Join(issue(members, identities), os.RemoveAll(authorityDir))
	})
	if err != nil {
		return fmt.Errorf("make the lab's authority: %w", err)
	}
	for host, files := range identities {
		for path, data := range files {
			if err := c.Host(host).WriteFile(path, data, 0o600); err != nil {
				return fmt.Errorf("install certificates: %w", err)
			}
		}
	}
	return nil
}

// issue makes an authority and reads each member's files.
func issue(members []string, identities map[string]map[string][]byte) error {
	ca, err := collective.InitCA(authorityDir, "lab")
	if err != nil {
		return err
	}
	to := FilesIn(issuedDir)
	for _, name := range members {
		issued, err := ca.Issue(collective.Request{Name: name, Validity: validity})
		if err != nil {
			return err
		}
		identities[name] = map[string][]byte{}
		for path, from := range map[string]string{
			to.Certificate: issued.CertFile, to.Key: issued.KeyFile, to.CA: ca.CertFile(), to.CRL: ca.CRLFile(),
		} {
			if identities[name][path], err = os.ReadFile(from); err != nil {
				return err
			}
		}
	}
	return nil
}

// Coordinator returns a coordinator as members' configurations name it.
func Coordinator(name string, at netip.Addr) string {
	return name + "@" + netip.AddrPortFrom(at, SessionPort).String()
}

// Found founds a collective on a host, with the same command as a person.
func (c Crew) Found(ctx context.Context, host, collective string) error {
	_, err := c.DCol(ctx, host, "init", collective, "--address", c.Host(host).Addr().String(), "--no-start")
	return err
}

// Join makes a host a member by an invitation. The coordinator's agent must have been started, but need not be ready.
func (c Crew) Join(ctx context.Context, coordinator, host string) error {
	var line []byte
	err := Await(ctx, inviteLimit, 100*time.Millisecond, func() (err error) {
		line, err = c.DCol(ctx, coordinator, "invite", "--name", host)
		return err
	})
	if err == nil {
		_, err = c.DCol(ctx, host, "join", strings.TrimSpace(string(line)), "--no-start")
	}
	if err != nil {
		return fmt.Errorf("make %s a member: %w", host, err)
	}
	return nil
}
