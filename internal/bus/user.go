package bus

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/detour-collective/dcol/internal/collective"
)

// maxUserLife bounds how long a JWT can count, and with it how long a revocation must be kept.
const maxUserLife = 90 * 24 * time.Hour

// maxSubscriptions is more than a member needs: what is for all, what is for it, answers.
const maxSubscriptions = 8

// MemberJWT lets a member use the bus until its certificate ends, or 90 days, whichever is sooner. The
// key is that of the certificate.
func (a *Authority) MemberJWT(name string, key ed25519.PublicKey, until time.Time) (string, error) {
	return a.userJWT(a.account, name, key, until, jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{fromPrefix + name + ".>"}},
		Sub: jwt.Permission{Allow: jwt.StringList{allPrefix + ">", toPrefix + name + ".>", inbox(name) + ".>"}},
	}, jwt.NatsLimits{Subs: maxSubscriptions, Data: jwt.NoLimit, Payload: MaxPayload})
}

// Life is from when until when a JWT counts, as it says itself.
func Life(userJWT string) (from, until time.Time, err error) {
	claims, err := jwt.DecodeUserClaims(userJWT)
	if err != nil {
		return from, until, fmt.Errorf("read a JWT: %w", err)
	}
	return time.Unix(claims.IssuedAt, 0), time.Unix(claims.Expires, 0), nil
}

// CoordinatorJWT lets a coordinator hear and tell all members, and use JetStream.
func (a *Authority) CoordinatorJWT(name string, key ed25519.PublicKey, until time.Time) (string, error) {
	return a.userJWT(a.account, name, key, until, jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{allPrefix + ">", toPrefix + ">", inboxPrefix + ">", "$JS.>", "$KV.>"}},
		Sub: jwt.Permission{Allow: jwt.StringList{fromPrefix + ">", inbox(name) + ".>"}},
	}, jwt.NatsLimits{Subs: jwt.NoLimit, Data: jwt.NoLimit, Payload: jwt.NoLimit})
}

// SystemJWT lets a coordinator tell the servers of an external cluster whom to let in.
func (a *Authority) SystemJWT(name string, key ed25519.PublicKey, until time.Time) (string, error) {
	return a.userJWT(a.system, name, key, until, jwt.Permissions{
		Pub: jwt.Permission{Allow: jwt.StringList{claimsUpdate}},
		Sub: jwt.Permission{Allow: jwt.StringList{inbox(name) + ".>"}},
	}, jwt.NatsLimits{Subs: maxSubscriptions, Data: jwt.NoLimit, Payload: jwt.NoLimit})
}

func (a *Authority) userJWT(account nkeys.KeyPair, name string, key ed25519.PublicKey, until time.Time, permissions jwt.Permissions, limits jwt.NatsLimits) (string, error) {
	if err := collective.CheckName(name); err != nil { // a '*' in it would be everybody
		return "", fmt.Errorf("make a JWT: %w", err)
	}
	user, err := nkeys.Encode(nkeys.PrefixByteUser, key)
	if err != nil {
		return "", fmt.Errorf("make a JWT for %s: %w", name, err)
	}
	now := time.Now()
	if !until.After(now) {
		return "", fmt.Errorf("make a JWT for %s: %w on %s", name, collective.ErrExpired, until.UTC().Format("2006-01-02 15:04 UTC"))
	}
	if last := now.Add(maxUserLife); until.After(last) {
		until = last
	}
	a.outwait(string(user))
	claims := jwt.NewUserClaims(string(user))
	claims.Name = name
	claims.Expires = until.Unix()
	claims.Permissions = permissions
	claims.NatsLimits = limits
	claims.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess} // of an external server; of the embedded one
	return encodeClaims(claims, account)
}

// outwait waits for the second after the one in which the user's earlier JWTs were revoked: NATS counts
// in whole seconds, and would take a JWT made within it for one of those revoked.
func (a *Authority) outwait(user string) {
	a.mu.Lock()
	at, revoked := a.state.Revoked[user]
	a.mu.Unlock()
	if revoked {
		time.Sleep(time.Until(at.Truncate(time.Second).Add(time.Second)))
	}
}
