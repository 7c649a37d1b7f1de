package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
)

const (
	// Every claimsEvery, this host's measurements of waypoints go to the membership, and those of other members are read. The
	// first exchange comes firstClaims after the start, with the measurements of earlier agents. The second comes moreClaims
	// later, because the directory may have to be fetched first. The membership publishes less often.
	claimsEvery = 10 * time.Minute
	firstClaims = 5 * time.Second
	moreClaims  = 10 * time.Second
)

// exchange holds the time of the next exchange of claims about waypoints, and whether one is under way.
type exchange struct {
	at    time.Time
	going bool
	again bool // the first is over
	// publish is set if this host's own measurements are given to others.
	publish bool
}

// begin records that an exchange is under way.
func (e *exchange) begin(now time.Time) {
	wait := moreClaims
	if e.again {
		wait = claimsEvery
	}
	e.at, e.going, e.again = now.Add(wait), true, true
}

// due reports whether it is time for an exchange.
func (e *exchange) due(now time.Time) bool {
	if e.at.IsZero() {
		e.at = now.Add(firstClaims)
	}
	return !e.going && !now.Before(e.at)
}

// exchangeClaims gives this host's measurements of waypoints to other members, and theirs to the path manager.
func (c *Client) exchangeClaims(ctx context.Context, now time.Time) {
	if c.config.Directory == nil || !c.exchange.due(now) {
		return
	}
	c.exchange.begin(now)
	about := slices.Collect(maps.Keys(c.roster.using))
	var own []claim.Claim
	if c.exchange.publish {
		own = c.manager.Claims(now)
	}
	c.inbox.inBackground(ctx, func() func(time.Time) {
		heard, err := c.config.Directory.ExchangeClaims(ctx, own, about)
		return func(now time.Time) {
			c.exchange.going = false
			if err == nil { // else the agent stops
				c.handle(ctx, now, path.ClaimsHeard{Claims: heard})
			}
		}
	})
}
