package client

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/agent/client/policies"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

// Reconfigure takes over those settings of next that config.Reloaded takes over. If next has another
// choice of waypoints or of converters than before, that choice replaces what `dcol use`, `dcol avoid` and
// `dcol convert` changed.
func (c *Client) Reconfigure(ctx context.Context, before, next config.Client) error {
	_, err := call(ctx, c.inbox, func(now time.Time) (struct{}, error) {
		s := policies.Client(next)
		c.handle(ctx, now, path.Reconfigured{
			Policy: s.Policy, TLSPorts: s.TLSPorts, BulkPorts: s.BulkPorts, MessagePorts: s.MessagePorts,
			Exclude: s.Exclude,
		})
		c.exchange.publish = next.PublishMeasurements
		c.steering.settings = next
		if !slices.Equal(before.Use, next.Use) || !slices.Equal(before.Avoid, next.Avoid) || before.UseOnly != next.UseOnly {
			c.steering.requests = nil
			c.steer(ctx, now)
		}
		if !slices.Equal(before.Exclude, next.Exclude) || !reflect.DeepEqual(before.Converter, next.Converter) {
			c.converters.setClient(next)
			c.tellRelay(now)
			c.gateway.configure(next, c.converters.settings.Waypoint.Marks)
			c.keepGateway(now)
		}
		c.roster.fixed = next.Waypoints
		c.reconcile(ctx, now)
		return struct{}{}, nil
	})
	if err == nil && before.Converter.Use != next.Converter.Use {
		err = c.Convert(ctx, next.Converter.Use)
	}
	return err
}
