// A stock Arrow Flight client in Go: lists topics, puts rows into one of them and reads them again. It knows nothing of
// Frazil. What it finds goes to stdout as JSON lines.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func say(what string, value any) {
	line, _ := json.Marshal(map[string]any{what: value})
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		say("error", map[string]string{"code": status.Code(err).String(), "message": err.Error()})
		os.Exit(1)
	}
}

func pathOf(topic string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: strings.Split(topic[1:], "/")}
}

func list(ctx context.Context, client flight.Client, prefix string) {
	stream, err := client.ListFlights(ctx, &flight.Criteria{Expression: []byte(prefix)})
	check(err)
	for {
		info, err := stream.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		say("flight", info.FlightDescriptor.Path)
	}
}

func put(ctx context.Context, client flight.Client, topic, column string, values []string) {
	stream, err := client.DoPut(ctx)
	check(err)
	schema := arrow.NewSchema([]arrow.Field{{Name: column, Type: arrow.BinaryTypes.String}}, nil)
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(pathOf(topic))
	for _, value := range values {
		builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		builder.Field(0).(*array.StringBuilder).Append(value)
		record := builder.NewRecord()
		err = writer.Write(record)
		if err != io.EOF { // an end that the reading side explains
			check(err)
		}
	}
	check(writer.Close())
	check(stream.CloseSend())
	for {
		result, err := stream.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		say("stored", json.RawMessage(result.AppMetadata))
	}
}

func get(ctx context.Context, client flight.Client, topic string) {
	info, err := client.GetFlightInfo(ctx, pathOf(topic))
	check(err)
	stream, err := client.DoGet(ctx, info.Endpoint[0].Ticket)
	check(err)
	reader, err := flight.NewRecordReader(stream)
	check(err)
	for reader.Next() {
		record := reader.Record()
		offsets := record.Column(0).(*array.Int64)
		payloads := record.Column(int(record.NumCols()) - 1).(*array.Binary)
		for row := range offsets.Len() {
			say("row", []any{offsets.Value(row), string(payloads.Value(row))})
		}
	}
	check(reader.Err())
}

// list ADDRESS PREFIX | get ADDRESS TOPIC | put ADDRESS TOPIC COLUMN VALUE...
func main() {
	client, err := flight.NewClientWithMiddleware(
		os.Args[2], nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	check(err)
	ctx := context.Background()
	switch os.Args[1] {
	case "list":
		list(ctx, client, os.Args[3])
	case "get":
		get(ctx, client, os.Args[3])
	case "put":
		put(ctx, client, os.Args[3], os.Args[4], os.Args[5:])
	}
}
