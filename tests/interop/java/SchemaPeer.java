import com.google.protobuf.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException.IncompatibleSchemaException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SchemaSerializationException;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Typed producers and consumers of Pulsar's own client against a registry of schemas.
 *
 * Argument: the service URL. Each step prints "ok NAME"; the first that fails ends the program with
 * its stack trace and status 1.
 */
public final class SchemaPeer {
    private static final int WAIT_S = 20;
    private static final int AT_ONCE_S = 5;

    interface Step {
        void run() throws Exception;
    }

    /** The fields of {@code First} and one more, which may be missing. */
    public static final class First {
        public String name;
        public int number;
    }

    public static final class Second {
        public String name;
        public int number;
        public Long more;
    }

    public static final class Wrong {
        public String name;
        public String number;
    }

    private final PulsarClient client;
    private int topics;

    private SchemaPeer(String url) throws Exception {
        this.client = PulsarClient.builder().serviceUrl(url).build();
    }

    public static void main(String[] args) {
        try {
            new SchemaPeer(args[0]).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        step("primitive types", this::primitiveTypes);
        step("avro", () -> evolve(Schema.AVRO(First.class), Schema.AVRO(Second.class)));
        step("json", () -> evolve(Schema.JSON(First.class), Schema.JSON(Second.class)));
        step("protobuf", () -> protobuf(Schema.PROTOBUF(Timestamp.class)));
        step("native protobuf", () -> protobuf(Schema.PROTOBUF_NATIVE(Timestamp.class)));
        step("key and value in the payload", () -> keyValue(KeyValueEncodingType.INLINE));
        step("the key apart", () -> keyValue(KeyValueEncodingType.SEPARATED));
        step("auto consume", this::autoConsume);
        step("auto consume of keys and values", this::autoConsumeKeyValue);
        step("auto produce", this::autoProduce);
        step("another schema for each message", this::perMessage);
        step("incompatible ones are refused", this::incompatible);
        step("partitions", this::partitions);
    }

    private static void step(String name, Step step) throws Exception {
        step.run();
        System.out.println("ok " + name);
    }

    // -- what steps say over and over -------------------------------------------------------------

    private String topic() {
        topics++;
        return "persistent://public/default/schemas-" + System.nanoTime() + "-" + topics;
    }

    private <T> Consumer<T> consumer(String topic, Schema<T> schema) throws Exception {
        return client.newConsumer(schema).topic(topic).subscriptionName("s" + System.nanoTime())
            .subscribe();
    }

    private <T> Producer<T> producer(String topic, Schema<T> schema) throws Exception {
        return client.newProducer(schema).topic(topic).create();
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        check(message != null, "a message comes");
        return message;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static long version(Message<?> message) {
        byte[] bytes = message.getSchemaVersion();
        check(bytes != null && bytes.length == 8, "a version: " + Arrays.toString(bytes));
        return java.nio.ByteBuffer.wrap(bytes).getLong();
    }

    private static void refused(String words, Step step) throws Exception {
        long begun = System.nanoTime();
        try {
            step.run();
        } catch (IncompatibleSchemaException error) {
            check(System.nanoTime() - begun < TimeUnit.SECONDS.toNanos(AT_ONCE_S), "at once");
            check(String.valueOf(error).contains(words), "'" + words + "' in: " + error);
            return;
        }
        throw new AssertionError("not refused: " + words);
    }

    private static First first(String name, int number) {
        First made = new First();
        made.name = name;
        made.number = number;
        return made;
    }

    private static Second second(String name, int number, Long more) {
        Second made = new Second();
        made.name = name;
        made.number = number;
        made.more = more;
        return made;
    }

    // -- the steps --------------------------------------------------------------------------------

    private void primitiveTypes() throws Exception {
        primitive(Schema.STRING, "é");
        primitive(Schema.BYTES, new byte[] {0, 1});
        primitive(Schema.BOOL, true);
        primitive(Schema.INT8, (byte) -8);
        primitive(Schema.INT16, (short) -16);
        primitive(Schema.INT32, -32);
        primitive(Schema.INT64, -64L);
        primitive(Schema.FLOAT, 0.5f);
        primitive(Schema.DOUBLE, 0.25);
        primitive(Schema.DATE, new java.util.Date(1000));
        primitive(Schema.TIME, new java.sql.Time(1000));
        primitive(Schema.TIMESTAMP, new java.sql.Timestamp(1000));
        primitive(Schema.INSTANT, Instant.ofEpochSecond(1));
        primitive(Schema.LOCAL_DATE, LocalDate.of(2026, 11, 22));
    }

    private <T> void primitive(Schema<T> schema, T value) throws Exception {
        String topic = topic();
        try (Producer<T> producer = producer(topic, schema);
            Consumer<T> consumer = consumer(topic, schema)) {
            producer.send(value);
            T found = next(consumer).getValue();
            check(value instanceof byte[] ? Arrays.equals((byte[]) value, (byte[]) found)
                : value.equals(found), value + ", not " + found);
        }
        if (schema.getSchemaInfo().getType() != SchemaType.BYTES) {
            Schema<?> other =
                schema.getSchemaInfo().getType() == SchemaType.STRING ? Schema.INT32 : Schema.STRING;
            refused("does not become", () -> producer(topic, other));
            refused("cannot be read as", () -> consumer(topic, other));
        }
    }

    /** A consumer of each version reads what was written with each. */
    private void evolve(Schema<First> one, Schema<Second> two) throws Exception {
        String topic = topic();
        try (Producer<First> old = producer(topic, one); Consumer<First> reads = consumer(topic, one);
            Consumer<Second> early = consumer(topic, two)) {
            old.send(first("a", 1));
            try (Producer<Second> young = producer(topic, two);
                Producer<First> again = producer(topic, one)) {
                young.send(second("b", 2, 3L));
                again.send(first("c", 4));
            }
            int number = 0;
            for (long version : new long[] {0, 1, 0}) {
                Message<First> message = next(reads);
                check(version(message) == version, "version " + version(message));
                check(message.getValue().name.equals("abc".substring(number, number + 1)), "name");
                Second other = next(early).getValue();
                check(version == 1 ? other.more == 3 : other.more == null, "more: " + other.more);
                number++;
            }
            try (Reader<Second> reader = client.newReader(two).topic(topic)
                .startMessageId(MessageId.earliest).create()) {
                for (int expected : new int[] {1, 2, 4}) {
                    check(reader.readNext(WAIT_S, TimeUnit.SECONDS).getValue().number == expected,
                        "read " + expected);
                }
            }
        }
    }

    private void protobuf(Schema<Timestamp> schema) throws Exception {
        String topic = topic();
        try (Producer<Timestamp> producer = producer(topic, schema);
            Consumer<Timestamp> consumer = consumer(topic, schema)) {
            Timestamp value = Timestamp.newBuilder().setSeconds(7).setNanos(8).build();
            producer.send(value);
            Message<Timestamp> message = next(consumer);
            check(message.getValue().equals(value), "the value: " + message.getValue());
            check(version(message) == 0, "version " + version(message));
        }
        refused("does not become AVRO", () -> producer(topic, Schema.AVRO(First.class)));
        if (schema.getSchemaInfo().getType() == SchemaType.PROTOBUF_NATIVE) {
            refused("google.protobuf.Timestamp", () ->
                producer(topic, Schema.PROTOBUF_NATIVE(com.google.protobuf.Duration.class)));
        }
    }

    private void keyValue(KeyValueEncodingType encoding) throws Exception {
        String topic = topic();
        Schema<KeyValue<String, First>> schema =
            Schema.KeyValue(Schema.STRING, Schema.AVRO(First.class), encoding);
        try (Producer<KeyValue<String, First>> producer = producer(topic, schema);
            Consumer<KeyValue<String, First>> consumer = consumer(topic, schema)) {
            producer.send(new KeyValue<>("k", first("a", 1)));
            Message<KeyValue<String, First>> message = next(consumer);
            check(message.getValue().getKey().equals("k"), "the key");
            check(message.getValue().getValue().number == 1, "the value");
            check(version(message) == 0, "version " + version(message));
        }
        producer(topic, Schema.KeyValue(Schema.STRING, Schema.AVRO(Second.class), encoding)).close();
        refused("value: SchemaPeer.Wrong.number", () -> producer(topic,
            Schema.KeyValue(Schema.STRING, Schema.AVRO(Wrong.class), encoding)));
        refused("key: STRING cannot be read as INT32", () -> producer(topic,
            Schema.KeyValue(Schema.INT32, Schema.AVRO(First.class), encoding)));
    }

    /** It reads each message with the version that it was written with. */
    private void autoConsume() throws Exception {
        String topic = topic();
        try (Consumer<GenericRecord> consumer = consumer(topic, Schema.AUTO_CONSUME());
            Producer<First> one = producer(topic, Schema.AVRO(First.class));
            Producer<Second> two = producer(topic, Schema.AVRO(Second.class))) {
            one.send(first("a", 1));
            two.send(second("b", 2, 3L));
            GenericRecord old = next(consumer).getValue();
            check(old.getSchemaType() == SchemaType.AVRO, "its type: " + old.getSchemaType());
            check(old.getField("number").equals(1) && old.getFields().size() == 2, "the first");
            GenericRecord young = next(consumer).getValue();
            check(young.getField("more").equals(3L), "the second: " + young.getFields());
        }
    }

    private void autoConsumeKeyValue() throws Exception {
        String topic = topic();
        Schema<KeyValue<First, Second>> schema = Schema.KeyValue(Schema.AVRO(First.class),
            Schema.AVRO(Second.class), KeyValueEncodingType.SEPARATED);
        try (Consumer<GenericRecord> consumer = consumer(topic, Schema.AUTO_CONSUME());
            Producer<KeyValue<First, Second>> producer = producer(topic, schema)) {
            producer.send(new KeyValue<>(first("a", 1), second("b", 2, 3L)));
            GenericRecord found = next(consumer).getValue();
            check(found.getSchemaType() == SchemaType.KEY_VALUE, "its type");
            KeyValue<?, ?> pair = (KeyValue<?, ?>) found.getNativeObject();
            check(((GenericRecord) pair.getKey()).getField("number").equals(1), "the key");
            check(((GenericRecord) pair.getValue()).getField("more").equals(3L), "the value");
        }
    }

    /** It asks for the topic's schema, and holds what it is given against that. */
    private void autoProduce() throws Exception {
        String topic = topic();
        Schema<First> schema = Schema.AVRO(First.class);
        try (Producer<First> first = producer(topic, schema);
            Consumer<First> consumer = consumer(topic, schema);
            Producer<byte[]> producer = producer(topic, Schema.AUTO_PRODUCE_BYTES())) {
            producer.send(schema.encode(first("a", 1)));
            Message<First> message = next(consumer);
            check(message.getValue().number == 1 && version(message) == 0, "the value");
            try {
                producer.send(new byte[] {1});
            } catch (SchemaSerializationException refused) {
                return;
            }
            throw new AssertionError("bytes that are none of the schema were sent");
        }
    }

    private void perMessage() throws Exception {
        String topic = topic();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create();
            Consumer<GenericRecord> consumer = consumer(topic, Schema.AUTO_CONSUME())) {
            producer.newMessage(Schema.AVRO(First.class)).value(first("a", 1)).send();
            producer.newMessage(Schema.AVRO(Second.class)).value(second("b", 2, 3L)).send();
            // The client has words of its own for this, and keeps the broker's to its log.
            refused("incompatible schema", () -> producer.newMessage(Schema.AVRO(Wrong.class))
                .value(new Wrong()).send());
            producer.newMessage(Schema.AVRO(First.class)).value(first("c", 4)).send();
            for (long version : new long[] {0, 1, 0}) {
                check(version(next(consumer)) == version, "version " + version);
            }
        }
    }

    private void incompatible() throws Exception {
        for (List<Schema<?>> pair : List.of(
            List.<Schema<?>>of(Schema.AVRO(First.class), Schema.AVRO(Wrong.class)),
            List.<Schema<?>>of(Schema.JSON(First.class), Schema.JSON(Wrong.class)))) {
            String topic = topic();
            try (Producer<?> producer = producer(topic, pair.get(0))) {
                refused("version 0 of the topic's schema", () -> producer(topic, pair.get(1)));
                refused("Wrong.number: int cannot be read", () -> consumer(topic, pair.get(1)));
                check(producer.isConnected(), "others go on");
            }
        }
        String topic = topic();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            refused("has no schema", () -> consumer(topic, Schema.AVRO(First.class)));
        }
    }

    private void partitions() throws Exception {
        String topic = topic();
        for (int partition = 0; partition < 3; partition++) {
            producer(topic + "-partition-" + partition, Schema.AVRO(First.class)).close();
        }
        try (Consumer<GenericRecord> consumer =
                consumer(topic + "-partition-1", Schema.AUTO_CONSUME());
            Producer<Second> producer = producer(topic + "-partition-1", Schema.AVRO(Second.class))) {
            producer.send(second("b", 2, 3L));
            check(version(next(consumer)) == 1, "the second version of all of them");
        }
        refused("Wrong.number", () -> producer(topic + "-partition-2", Schema.AVRO(Wrong.class)));
    }
}
